//! The instructions that touch registered memory.
//!
//! Peers, the program and the engine read and write registered memory at the same time, and the program can unmap it at
//! any time. In Rust either is undefined. So no Rust expression touches it, except the functions in assembly here:
//! their effect on memory is defined by the processor. They cost what `memcpy` costs; copies by relaxed atomic words
//! take 1.6 times as long. A handler for SIGSEGV and SIGBUS ([`faults`](super::faults)) knows their addresses, and
//! makes them return an error.

/// A page was missing, or not writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vanished;

/// Copies `len` bytes, in no particular order. Eight bytes that lie at a multiple of eight on both sides, in a copy that begins and
/// ends at one, are read and written in one go.
///
/// # Safety
/// Each range is valid memory, and the range at `to` is writable; or it is memory that a program lent, once
/// [`faults::install`](super::faults::install) was called. The ranges must not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Vanished> {
    // SAFETY: the caller's promise; faults in what was lent end in the handler.
    if unsafe { code::uroce_memory_copy(to, from, len) } == 0 { Ok(()) } else { Err(Vanished) }
}

/// Stores the first `len` bytes of `value`, as they lie in memory, at `to`, all in one instruction.
///
/// # Safety
/// As for [`copy`]; `len` is 1, 2, 4 or 8, and `to` is aligned to it.
pub(super) unsafe fn store(value: u64, to: *mut u8, len: usize) -> Result<(), Vanished> {
    // SAFETY: as in `copy`.
    if unsafe { code::uroce_memory_store(to, value, len) } == 0 { Ok(()) } else { Err(Vanished) }
}

/// Replaces the eight aligned bytes at `cell` by `new(old)` in one atomic step and returns the old ones.
///
/// # Safety
/// As for [`copy`]; `cell` is aligned to eight.
pub(super) unsafe fn update_u64(cell: *mut u64, new: impl Fn(u64) -> u64) -> Result<u64, Vanished> {
    // A guess: the exchange fails and tells the value, or the guess was right.
    let mut old = 0;
    loop {
        // SAFETY: `old` is ours; the caller's promise for the cell.
        match unsafe { code::uroce_memory_exchange(cell, &mut old, new(old)) } {
            EXCHANGED => return Ok(old),
            OTHER_VALUE => {}
            _ => return Err(Vanished),
        }
    }
}

const EXCHANGED: u64 = 0;
const OTHER_VALUE: u64 = 1;

pub(super) use code::landing;

#[cfg(not(miri))]
mod code {
    unsafe extern "C" {
        /// 0 when `len` bytes were copied, 1 after a fault.
        pub fn uroce_memory_copy(to: *mut u8, from: *const u8, len: usize) -> u64;
        /// 0 when the value was stored, 1 after a fault.
        pub fn uroce_memory_store(to: *mut u8, value: u64, len: usize) -> u64;
        /// If `*cell == *old`, stores `new` and returns 0; else sets `*old` and returns 1; 2 after a fault.
        pub fn uroce_memory_exchange(cell: *mut u64, old: *mut u64, new: u64) -> u64;
        static uroce_memory_copy_faulted: u8;
        static uroce_memory_store_faulted: u8;
        static uroce_memory_exchange_faulted: u8;
    }

    /// Where a fault at the instruction `at` continues, when that is one of those here; `None` for all others. It only
    /// compares addresses, so that a signal handler can call it.
    pub fn landing(at: usize) -> Option<usize> {
        let functions = [
            (uroce_memory_copy as *const () as usize, &raw const uroce_memory_copy_faulted as usize),
            (uroce_memory_store as *const () as usize, &raw const uroce_memory_store_faulted as usize),
            (uroce_memory_exchange as *const () as usize, &raw const uroce_memory_exchange_faulted as usize),
        ];
        functions.into_iter().find(|(begin, faulted)| (*begin..*faulted).contains(&at)).map(|(_, faulted)| faulted)
    }

    // None of the functions has anything on the stack, so that from each of their instructions execution can go on behind the
    // label `_faulted`, which ends them.
    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(
        ".text",
        ".globl uroce_memory_copy, uroce_memory_copy_faulted",
        ".hidden uroce_memory_copy, uroce_memory_copy_faulted",
        ".p2align 4",
        "uroce_memory_copy:", // rdi: to, rsi: from, rdx: len
        "cmp rdx, {LONG}",
        "jae 6f",
        "cmp rdx, 16",
        "jb 3f",
        "7:",
        "movups xmm1, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 16]",
        "jmp 2f",
        ".p2align 4",
        "1:", // sixteen at a time; the last sixteen may overlap the others
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "2:",
        "cmp rdi, r8",
        "jb 1b",
        "movups [r8], xmm1",
        "xor eax, eax",
        "ret",
        "3:",
        "cmp rdx, 8",
        "jb 4f",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "4:",
        "test rdx, rdx",
        "jz 5f",
        "mov al, [rsi + rdx - 1]",
        "mov [rdi + rdx - 1], al",
        "dec rdx",
        "jmp 4b",
        "5:",
        "xor eax, eax",
        "ret",
        "6:", // unless the target lies 1 to 31 bytes behind the source in its page; 32 goes along
        "mov eax, edi",
        "sub eax, esi",
        "dec eax",
        "test eax, 0xfe0",
        "jz 7b",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "uroce_memory_copy_faulted:",
        "mov eax, 1",
        "ret",
        ".globl uroce_memory_store, uroce_memory_store_faulted",
        ".hidden uroce_memory_store, uroce_memory_store_faulted",
        ".p2align 4",
        "uroce_memory_store:", // rdi: to, rsi: value, rdx: len
        "xor eax, eax",
        "cmp rdx, 8",
        "je 8f",
        "cmp rdx, 4",
        "je 4f",
        "cmp rdx, 2",
        "je 2f",
        "mov [rdi], sil",
        "ret",
        "2:",
        "mov [rdi], si",
        "ret",
        "4:",
        "mov [rdi], esi",
        "ret",
        "8:",
        "mov [rdi], rsi",
        "ret",
        "uroce_memory_store_faulted:",
        "mov eax, 1",
        "ret",
        ".globl uroce_memory_exchange, uroce_memory_exchange_faulted",
        ".hidden uroce_memory_exchange, uroce_memory_exchange_faulted",
        ".p2align 4",
        "uroce_memory_exchange:", // rdi: cell, rsi: old, rdx: new
        "mov rax, [rsi]",
        "lock cmpxchg [rdi], rdx",
        "jne 2f",
        "xor eax, eax",
        "ret",
        "2:",
        "mov [rsi], rax",
        "mov eax, 1",
        "ret",
        "uroce_memory_exchange_faulted:",
        "mov eax, 2",
        "ret",
        // From here on `rep movsb` is as fast (measured on Zen 4; glibc changes over at 2 to 4 KiB). Not where the target's offset
        // in its page is 1 to 31 more than the source's: then 4096 bytes take 1480 ns instead of 70 (measured on Zen 3), and
        // sixteen at a time 140.
        LONG = const 1024,
    );

    #[cfg(target_arch = "aarch64")]
    std::arch::global_asm!(
        ".text",
        ".globl uroce_memory_copy, uroce_memory_copy_faulted",
        ".hidden uroce_memory_copy, uroce_memory_copy_faulted",
        ".p2align 4",
        "uroce_memory_copy:", // x0: to, x1: from, x2: len
        "subs x2, x2, #16",
        "b.lo 2f",
        "1:",
        "ldp x3, x4, [x1], #16",
        "stp x3, x4, [x0], #16",
        "subs x2, x2, #16",
        "b.hs 1b",
        "2:", // the low four bits are still those of the length: eight, four, two bytes and one, each in one go
        "tbz x2, #3, 3f",
        "ldr x3, [x1], #8",
        "str x3, [x0], #8",
        "3:",
        "tbz x2, #2, 4f",
        "ldr w3, [x1], #4",
        "str w3, [x0], #4",
        "4:",
        "tbz x2, #1, 5f",
        "ldrh w3, [x1], #2",
        "strh w3, [x0], #2",
        "5:",
        "tbz x2, #0, 6f",
        "ldrb w3, [x1]",
        "strb w3, [x0]",
        "6:",
        "mov x0, #0",
        "ret",
        "uroce_memory_copy_faulted:",
        "mov x0, #1",
        "ret",
        ".globl uroce_memory_store, uroce_memory_store_faulted",
        ".hidden uroce_memory_store, uroce_memory_store_faulted",
        ".p2align 4",
        "uroce_memory_store:", // x0: to, x1: value, x2: len
        "cmp x2, #8",
        "b.eq 8f",
        "cmp x2, #4",
        "b.eq 4f",
        "cmp x2, #2",
        "b.eq 2f",
        "strb w1, [x0]",
        "b 9f",
        "2:",
        "strh w1, [x0]",
        "b 9f",
        "4:",
        "str w1, [x0]",
        "b 9f",
        "8:",
        "str x1, [x0]",
        "9:",
        "mov x0, #0",
        "ret",
        "uroce_memory_store_faulted:",
        "mov x0, #1",
        "ret",
        ".globl uroce_memory_exchange, uroce_memory_exchange_faulted",
        ".hidden uroce_memory_exchange, uroce_memory_exchange_faulted",
        ".p2align 4",
        "uroce_memory_exchange:", // x0: cell, x1: old, x2: new
        "ldr x3, [x1]",
        "1:",
        "ldaxr x4, [x0]",
        "cmp x4, x3",
        "b.ne 2f",
        "stlxr w5, x2, [x0]",
        "cbnz w5, 1b",
        "mov x0, #0",
        "ret",
        "2:",
        "clrex",
        "str x4, [x1]",
        "mov x0, #1",
        "ret",
        "uroce_memory_exchange_faulted:",
        "mov x0, #2",
        "ret",
    );
}

/// The same for Miri, which runs no assembly: by atomic bytes, for memory that is not unmapped.
#[cfg(miri)]
mod code {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    pub fn landing(_at: usize) -> Option<usize> {
        None
    }

    pub unsafe fn uroce_memory_copy(to: *mut u8, from: *const u8, len: usize) -> u64 {
        for at in 0..len {
            // SAFETY: the caller's ranges are valid.
            unsafe { AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Ordering::Relaxed) };
        }
        0
    }

    pub unsafe fn uroce_memory_store(to: *mut u8, value: u64, len: usize) -> u64 {
        // SAFETY: as above.
        unsafe { uroce_memory_copy(to, value.to_ne_bytes().as_ptr(), len) }
    }

    pub unsafe fn uroce_memory_exchange(cell: *mut u64, old: *mut u64, new: u64) -> u64 {
        // SAFETY: the caller's cell is valid and aligned, and `old` its own.
        unsafe {
            let cell = AtomicU64::from_ptr(cell);
            cell.compare_exchange(*old, new, Ordering::AcqRel, Ordering::Acquire).map_or_else(
                |now| {
                    *old = now;
                    super::OTHER_VALUE
                },
                |_| super::EXCHANGED,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_copy_what_is_there_and_nothing_beside_it() {
        // Below and above each border at which the code changes. Miri, which takes a minute for so much, has code without any.
        let (all_below, more, room) = if cfg!(miri) {
            (10, &[100][..], 120)
        } else {
            (70, &[127, 128, 129, 255, 1000, 1022, 1023, 1024, 1025, 4096][..], 5000)
        };
        let source: Vec<u8> = (0..room as u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..all_below).chain(more.iter().copied()) {
            for (from, to) in [(0, 0), (1, 5), (13, 2)] {
                let mut target = vec![0xaa; room];
                // SAFETY: both are our own, and long enough.
                assert_eq!(unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) }, Ok(()));
                let right = target.iter().enumerate().all(|(at, byte)| {
                    let inside = (to..to + len).contains(&at);
                    *byte == if inside { source[at - to + from] } else { 0xaa }
                });
                assert!(right, "{len} bytes from {from} to {to}");
            }
        }
    }

    /// Where the target's offset in its page is a little more than the source's, long copies take another way.
    #[cfg(not(miri))] // its copies are by bytes
    #[test]
    fn long_copies_copy_the_same_at_every_distance_in_a_page() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut target = vec![0; 12_000];
        for distance in (0..40).chain([4095, 2048]) {
            let to = (source.as_ptr() as usize + distance).wrapping_sub(target.as_ptr() as usize) % 4096;
            let len = 1024 + 97 * distance % 3000;
            target.fill(0xaa);
            // SAFETY: both are our own, and long enough.
            assert_eq!(unsafe { copy(source.as_ptr(), target.as_mut_ptr().add(to), len) }, Ok(()));
            assert_eq!(target[to..to + len], source[..len], "{len} bytes, {distance} behind");
            assert!(
                target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xaa),
                "{len} bytes, {distance}"
            );
        }
    }

    #[test]
    fn stores_and_exchanges_change_what_they_are_for() {
        for len in [1usize, 2, 4, 8] {
            let mut target = [0u64; 2];
            let value = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
            // SAFETY: our own, and aligned to eight.
            assert_eq!(unsafe { store(value, target.as_mut_ptr().cast(), len) }, Ok(()));
            let bytes = target[0].to_ne_bytes();
            assert!(bytes[..len] == [1, 2, 3, 4, 5, 6, 7, 8][..len] && bytes[len..].iter().all(|byte| *byte == 0));
            assert_eq!(target[1], 0);
        }
        for start in [0, 7, u64::MAX] {
            let mut cell = start;
            // SAFETY: as above.
            assert_eq!(unsafe { update_u64(&mut cell, |old| old.wrapping_add(3)) }, Ok(start));
            assert_eq!(cell, start.wrapping_add(3));
        }
    }

    /// One thread writes words of ones and words of zeros in turn, over each other; another one reads them. Whatever mixture of
    /// old and new words it gets, none is half old and half new.
    #[cfg(not(miri))] // its copies are by bytes
    #[test]
    fn aligned_words_are_never_half_old_and_half_new() {
        use crate::memory::HostMemory;
        use std::sync::atomic::{AtomicBool, Ordering};
        const WORDS: usize = 3;
        let (memory, stop) = (HostMemory::new(8 * WORDS).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    value = !value;
                    // SAFETY: the mapping is there as long as the scope; the source is our own.
                    unsafe { copy([value; WORDS].as_ptr().cast(), memory.as_ptr(), 8 * WORDS) }.unwrap();
                }
            });
            for round in 0..3_000_000 {
                let mut words = [0u64; WORDS];
                let count = 1 + round % WORDS;
                // SAFETY: as above.
                unsafe { copy(memory.as_ptr(), words.as_mut_ptr().cast(), 8 * count) }.unwrap();
                if words.iter().any(|word| ![0, !0].contains(word)) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("round {round}: {words:x?}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// From each instruction that reads or writes: short and long copies, the source's side and the target's, and all of a range
    /// or its end.
    #[cfg(not(miri))] // Miri knows no protection of pages
    #[test]
    fn vanished_and_read_only_pages_are_errors_and_not_the_end() {
        use crate::memory::{HostMemory, faults};
        faults::install();
        let memory = HostMemory::new(8192).unwrap();
        let page = memory.as_ptr();
        let mut own = [7u8; 2048];
        // SAFETY: the mapping is ours, and nobody else looks at it; the handler is installed.
        unsafe {
            assert_eq!(libc::mprotect(page.add(4096).cast(), 4096, libc::PROT_READ), 0);
            for len in [2, 7, 9, 15, 16, 17, 100, 1023, 1024, 2048] {
                let across = page.add(4096 - len / 2);
                assert_eq!(copy(across, own.as_mut_ptr(), len), Ok(()), "{len}");
                assert_eq!(copy(own.as_ptr(), across, len), Err(Vanished), "{len}, half of it is read-only");
            }
            for len in [1, 2, 4, 8] {
                assert_eq!(store(1, page.add(4096), len), Err(Vanished));
            }
            assert_eq!(update_u64(page.add(4096).cast(), |old| old + 1), Err(Vanished));
            assert_eq!(libc::mprotect(page.cast(), 8192, libc::PROT_NONE), 0);
            for len in [1, 8, 20, 1024] {
                assert_eq!(copy(page, own.as_mut_ptr(), len), Err(Vanished), "{len}");
                assert_eq!(copy(own.as_ptr(), page, len), Err(Vanished), "{len}");
            }
            assert_eq!(update_u64(page.cast(), |old| old + 1), Err(Vanished));
        }
    }
}
