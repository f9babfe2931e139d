/// A block of which some symbols were sent, and that is not known to be whole.
#[derive(Debug)]
pub(super) struct OpenBlock {
    /// Its place in the order of importance, from 0 on.
    pub rank: u32,
    /// The checksum of its bytes when it was opened.
    pub crc: u32,
    /// The number of its symbols, without repair symbols.
    pub symbols: u32,
    /// Its repair symbols, one after the other.
    pub repair: Vec<u8>,
    states: Vec<(State, u32)>,
    /// The next symbol that was not sent yet.
    next: u32,
    arrived: u32,
    lost: u32,
}

/// What is known of a symbol; beside it stands the number of the datagram that carried it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unsent,
    InFlight,
    /// It is lost, and others are enough.
    Lost,
    /// It is lost, and is to be sent once more.
    Queued,
    Arrived,
}

/// What is to be done about a symbol that was found to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Others are enough, or it is on its way again.
    None,
    /// It is to be sent once more.
    Resend,
}

impl OpenBlock {
    /// A block of which nothing was sent.
    pub fn new(rank: u32, crc: u32, symbols: u32, (repairs, repair): (u32, Vec<u8>)) -> OpenBlock {
        let states = vec![(State::Unsent, 0); (symbols + repairs) as usize];
        OpenBlock { rank, crc, symbols, repair, states, next: 0, arrived: 0, lost: 0 }
    }

    /// The next symbol that was never sent, if there is one.
    pub fn next(&self) -> Option<u32> {
        ((self.next as usize) < self.states.len()).then_some(self.next)
    }

    /// Takes that a symbol goes in this datagram.
    pub fn sent(&mut self, symbol: u32, number: u32) {
        self.next = self.next.max(symbol + 1);
        self.states[symbol as usize] = (State::InFlight, number);
    }

    /// Takes that a symbol has arrived. Returns whether it waited to be sent once more.
    pub fn arrived(&mut self, symbol: u32) -> bool {
        let (before, number) = self.states[symbol as usize];
        self.states[symbol as usize] = (State::Arrived, number);
        self.arrived += u32::from(before != State::Arrived);
        self.lost -= u32::from(before == State::Lost);
        before == State::Queued
    }

    /// Whether so many symbols have arrived that the receiver needs no more.
    pub fn is_enough(&self) -> bool {
        self.arrived >= self.symbols
    }

    /// Takes that a datagram is lost. Its symbol is sent once more only if those that arrived, are on their way or are still to
    /// be sent are fewer than the receiver needs: as many can be missing as there are repair symbols.
    pub fn lose(&mut self, symbol: u32, number: u32) -> Remedy {
        if self.states[symbol as usize] != (State::InFlight, number) {
            return Remedy::None;
        }
        let spare = self.states.len() as u32 - self.symbols;
        if self.lost < spare {
            self.lost += 1;
            self.states[symbol as usize].0 = State::Lost;
            Remedy::None
        } else {
            self.states[symbol as usize].0 = State::Queued;
            Remedy::Resend
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_losses_as_repair_symbols_are_not_repaired_by_hand() {
        let mut block = OpenBlock::new(0, 0, 4, (2, vec![0; 128]));
        (0..6).for_each(|symbol| block.sent(symbol, 100 + symbol));
        assert_eq!(block.next(), None);
        assert_eq!(
            [1, 4, 2].map(|symbol| block.lose(symbol, 100 + symbol)),
            [Remedy::None, Remedy::None, Remedy::Resend]
        );
        // One that was lost had arrived: there is a spare one again.
        assert!(!block.arrived(1) && block.arrived(2));
        assert_eq!(block.lose(3, 103), Remedy::None);
        assert_eq!(block.lose(5, 105), Remedy::Resend);
        block.sent(5, 106);
        assert_eq!(block.lose(5, 105), Remedy::None, "the datagram before is not the symbol's last");
        assert!(!block.is_enough());
        assert_eq!([0, 5].map(|symbol| block.arrived(symbol)), [false, false]);
        assert!(block.is_enough());
    }

    #[test]
    fn without_repair_symbols_every_loss_is_repaired() {
        let mut block = OpenBlock::new(0, 0, 2, (0, Vec::new()));
        (0..2).for_each(|symbol| block.sent(symbol, symbol));
        assert_eq!([0, 1].map(|symbol| block.lose(symbol, symbol)), [Remedy::Resend, Remedy::Resend]);
    }
}
