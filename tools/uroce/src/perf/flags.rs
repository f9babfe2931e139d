use clap::Args;

use super::test::{Test, Verb};

/// Flags of perftest that change nothing here, or that cannot be had.
#[derive(Args)]
pub struct ForeignFlags {
    /// No effect: accepted for perftest, where it suppresses a warning
    #[arg(short = 'F', long = "CPU-freq", help_heading = "Accepted for perftest")]
    cpu_frequency: bool,

    /// No effect: messages are always copied into their packets when they are sent
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES", help_heading = "Accepted for perftest")]
    inline_bytes: Option<u32>,

    /// No effect: requests are posted one by one, and the packets are the same
    #[arg(short = 'l', long = "post_list", value_name = "N", help_heading = "Accepted for perftest",
          value_parser = clap::value_parser!(u32).range(1..))]
    post_list: Option<u32>,

    /// Refused: connects by RDMA CM
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    rdma_cm: bool,

    /// Refused: exchanges data by RDMA CM
    #[arg(short = 'z', long = "com_rdma_cm", hide = true)]
    com_rdma_cm: bool,

    /// Refused: RDMA CM's type of service
    #[arg(short = 'T', long = "tos", value_name = "N", hide = true)]
    tos: Option<String>,

    /// Refused: latencies in cycles of the processor
    #[arg(short = 'C', long = "report-cycles", hide = true)]
    cycles: bool,
}

impl ForeignFlags {
    /// What is to be said of flags without effect, a line each.
    ///
    /// # Errors
    /// Why a flag is refused, and what does the same, in one sentence.
    pub fn notes(&self, test: Test) -> Result<Vec<String>, String> {
        let program = format!("ib_{}", test.name().replace('-', "_"));
        if self.rdma_cm || self.com_rdma_cm {
            let flag = if self.rdma_cm { "-R" } else { "-z" };
            return Err(format!("{flag}: uroce perf has no RDMA CM; `uroce run {program} {flag}` has"));
        }
        if self.tos.is_some() {
            return Err("-T: that is for RDMA CM, which uroce perf does not have; use --tclass".to_owned());
        }
        if self.cycles {
            return Err(format!("-C: uroce perf measures in microseconds; `uroce run {program} -C` reads cycles"));
        }
        let carries_nothing = matches!(test.verb(), Verb::Read | Verb::Atomic);
        let mut notes = Vec::new();
        if self.inline_bytes.is_some() {
            if carries_nothing {
                return Err("-I: READs and atomics carry no data of the requester; omit it".to_owned());
            }
            notes.push("-I has no effect: messages are always copied into their packets when they are sent".to_owned());
        }
        if self.post_list.is_some() {
            if test.is_latency() {
                return Err("-l is for bandwidth only".to_owned());
            }
            notes.push("-l has no effect: requests are posted one by one, and the packets are the same".to_owned());
        }
        Ok(notes)
    }
}
