use crate::frame::FrameBytes;
use crate::memory::AtomicError;
use crate::memory::span::last_bytes;

use super::*;

fn table() -> MemoryTable {
    MemoryTable::new(KeySource::new([7; 32]))
}

const PD: Pd = Pd(1);
const QPN: Qpn = Qpn::new(9);
const SCOPE: Scope = Scope { pd: PD, queue_pair: QPN };
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::MW_BIND);

#[test]
fn remote_access_stays_in_the_region() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory, ALL);
    let remote = |address, len| table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE);
    assert!(remote(base, 100).is_ok() && remote(base + 99, 1).is_ok());
    for (address, len) in [(base, 101), (base + 100, 1), (base - 1, 1), (u64::MAX, 2), (base, u64::MAX)] {
        assert!(matches!(remote(address, len), Err(AccessError::OutOfBounds { .. })), "{len} at {address:#x}");
    }
    assert!(remote(12345, 0).is_ok(), "an empty access needs no address");
}

#[test]
fn a_part_of_memory_is_all_that_its_key_gives() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let iova = memory.address() + 10;
    let key = table.register_part(PD, memory, (10, 20), iova, ALL);
    let remote = |address, len| table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE).is_ok();
    assert!(remote(base + 10, 20));
    assert!(!remote(base + 9, 1) && !remote(base + 10, 21) && !remote(base + 30, 1));
}

#[test]
fn keys_domains_and_rights_are_checked() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory, Access::REMOTE_READ);
    let ask = |pd, key, wanted| table.remote(Scope { pd, queue_pair: QPN }, key, base, 1, wanted).map(|_| ());
    assert_eq!(ask(PD, key, Access::REMOTE_READ), Ok(()));
    assert_eq!(ask(Pd(2), key, Access::REMOTE_READ), Err(AccessError::Foreign(key)));
    assert_eq!(ask(PD, key, Access::REMOTE_WRITE), Err(AccessError::Denied { key, wanted: Access::REMOTE_WRITE }));
    let other = Key(key.0 ^ 1);
    assert_eq!(ask(PD, other, Access::REMOTE_READ), Err(AccessError::NoSuchKey(other)));
    assert!(table.local(PD, key, base, 1, false).is_ok());
    assert!(table.local(PD, key, base, 1, true).is_err());
    table.deregister(key).unwrap();
    assert!(table.local(PD, key, base, 1, false).is_err());
    assert!(table.deregister(key).is_err());
}

#[test]
fn windows_give_access_through_their_queue_pair_until_invalidated() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let region = table.register(PD, memory, ALL);
    let window = table.allocate_window(PD, WindowKind::Two);
    let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
    let access = Access::REMOTE_WRITE;
    let binding = WindowBinding { window, new_key, region, address: base + 10, len: 20, access };
    assert!(table.remote(SCOPE, window, base + 10, 1, access).is_err(), "not bound yet");
    table.bind(SCOPE, &binding).unwrap();
    let ask = |table: &MemoryTable, qpn, address, len, wanted| {
        table.remote(Scope { pd: PD, queue_pair: qpn }, new_key, address, len, wanted).is_ok()
    };
    assert!(ask(&table, QPN, base + 10, 20, access));
    assert!(!ask(&table, QPN, base + 9, 1, access) && !ask(&table, QPN, base + 10, 21, access));
    assert!(!ask(&table, Qpn::new(8), base + 10, 1, access));
    assert!(!ask(&table, QPN, base + 10, 1, Access::REMOTE_READ));
    assert!(table.deregister(region).is_err(), "a window is bound to it");
    assert!(table.invalidate(Scope { pd: PD, queue_pair: Qpn::new(8) }, new_key).is_err());
    table.invalidate(SCOPE, new_key).unwrap();
    assert!(!ask(&table, QPN, base + 10, 1, access));
    assert!(table.invalidate(SCOPE, region).is_err(), "ordinary regions cannot be invalidated");
    table.deregister(region).unwrap();
    table.deregister(new_key).unwrap();
    assert!(table.is_empty());
}

#[test]
fn type_1_windows_serve_their_domain_and_are_bound_anew() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let region = table.register(PD, memory, ALL);
    let mut window = table.allocate_window(PD, WindowKind::One);
    let mut bind = |table: &mut MemoryTable, address, len| {
        let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
        let binding = WindowBinding { window, new_key, region, address, len, access: Access::REMOTE_READ };
        table.bind(SCOPE, &binding).unwrap();
        (std::mem::replace(&mut window, new_key), new_key)
    };
    let ask = |table: &MemoryTable, qpn, key, address| {
        table.remote(Scope { pd: PD, queue_pair: qpn }, key, address, 1, Access::REMOTE_READ).is_ok()
    };
    let (_, first) = bind(&mut table, base, 10);
    assert!(ask(&table, QPN, first, base) && ask(&table, Qpn::new(8), first, base + 9), "any queue pair");
    assert!(table.invalidate(SCOPE, first).is_err(), "only type 2 can be invalidated");
    let (old, second) = bind(&mut table, base + 50, 10);
    assert!(old == first && !ask(&table, QPN, first, base + 50) && ask(&table, QPN, second, base + 50));
    let (_, none) = bind(&mut table, base, 0);
    assert!(!ask(&table, QPN, none, base));
    table.deregister(region).unwrap();
}

#[test]
fn of_a_windows_new_key_the_lower_eight_bits_count() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let address = memory.address();
    let region = table.register(PD, memory, ALL);
    for kind in [WindowKind::One, WindowKind::Two] {
        let window = table.allocate_window(PD, kind);
        let access = Access::REMOTE_WRITE;
        let binding = WindowBinding { window, new_key: Key(0x1234_5678), region, address, len: 100, access };
        table.bind(SCOPE, &binding).unwrap();
        let key = Key(window.0 & !0xff | 0x78);
        assert!(table.remote(SCOPE, key, address, 100, access).is_ok(), "{kind:?}");
        assert!(table.remote(SCOPE, Key(0x1234_5678), address, 100, access).is_err());
    }
    // Whichever of its keys a window is named by, it is that window.
    let window = table.allocate_window(PD, WindowKind::Two);
    let access = Access::REMOTE_WRITE;
    let binding = |window, new_key| WindowBinding { window, new_key, region, address, len: 1, access };
    let other = Key(window.0 ^ 0x55);
    table.bind(SCOPE, &binding(other, Key(1))).unwrap();
    let bound = table.bind(SCOPE, &binding(window, Key(2)));
    assert_eq!(bound, Err(WindowError::Bound(window)));
}

#[test]
fn a_type_2_window_is_not_bound_to_nothing() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let address = memory.address();
    let region = table.register(PD, memory, ALL);
    let window = table.allocate_window(PD, WindowKind::Two);
    let access = Access::REMOTE_READ;
    for region in [region, Key(0)] {
        let binding = WindowBinding { window, new_key: window, region, address, len: 0, access };
        assert_eq!(table.bind(SCOPE, &binding), Err(WindowError::Empty(window)));
    }
    table.deregister(region).unwrap();
}

#[test]
fn zero_based_regions_and_windows_begin_at_zero() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory.clone(), ALL | Access::ZERO_BASED);
    let remote = |table: &MemoryTable, key, address, len| {
        table.remote(SCOPE, key, address, len, Access::REMOTE_WRITE).map(|span| span.addresses().start as u64)
    };
    assert_eq!(remote(&table, key, 0, 100), Ok(base));
    assert_eq!(remote(&table, key, 99, 1), Ok(base + 99));
    assert!(remote(&table, key, 1, 100).is_err() && remote(&table, key, base, 1).is_err());
    assert_eq!(table.local(PD, key, 7, 1, true).unwrap().addresses().start as u64, base + 7);
    let window = table.allocate_window(PD, WindowKind::One);
    let access = Access::REMOTE_WRITE;
    let over = WindowBinding { window, new_key: window, region: key, address: 0, len: 10, access };
    assert_eq!(table.bind(SCOPE, &over), Err(WindowError::Region(key)), "windows need addresses below them");
    // The way back: by its own addresses again.
    table.reregister(key, None, Some(ALL)).unwrap();
    assert_eq!(remote(&table, key, base, 100), Ok(base));
    assert!(remote(&table, key, 0, 1).is_err());
    for kind in [WindowKind::One, WindowKind::Two] {
        let window = table.allocate_window(PD, kind);
        let access = access | Access::ZERO_BASED;
        let binding = WindowBinding { window, new_key: window, region: key, address: base + 10, len: 20, access };
        table.bind(SCOPE, &binding).unwrap();
        assert_eq!(remote(&table, window, 0, 20), Ok(base + 10), "{kind:?}");
        assert_eq!(remote(&table, window, 19, 1), Ok(base + 29));
        assert!(remote(&table, window, 1, 20).is_err() && remote(&table, window, base + 10, 1).is_err());
        let past_the_region = WindowBinding { window, address: base + 90, len: 11, ..binding };
        table.deallocate_window(window).unwrap();
        let window = table.allocate_window(PD, kind);
        let past_the_region = WindowBinding { window, ..past_the_region };
        assert!(matches!(table.bind(SCOPE, &past_the_region), Err(WindowError::OutOfBounds { .. })));
    }
    table.reregister(key, None, Some(ALL | Access::ZERO_BASED)).unwrap();
    assert_eq!(remote(&table, key, 0, 100), Ok(base));
}

#[test]
fn a_region_of_no_memory_reads_as_zeros_and_keeps_nothing() {
    let mut table = table();
    let key = table.register_null(PD);
    let span = table.local(PD, key, u64::MAX - 3, 3, true).unwrap();
    span.write(FrameBytes::from(&b"abc"[..])).unwrap();
    let mut read = *b"xyz";
    span.read(&mut read).unwrap();
    assert_eq!(read, [0; 3]);
    assert!(table.local(Pd(2), key, 0, 1, false).is_err());
    assert!(table.remote(SCOPE, key, 0, 1, Access::empty()).is_err(), "not for peers");
    let window = table.allocate_window(PD, WindowKind::One);
    let access = Access::REMOTE_READ;
    let binding = WindowBinding { window, new_key: window, region: key, address: 0, len: 1, access };
    assert_eq!(table.bind(SCOPE, &binding), Err(WindowError::Region(key)));
    assert!(table.reregister(key, None, Some(ALL)).is_err());
    table.deregister(key).unwrap();
    assert!(table.local(PD, key, 0, 1, false).is_err());
}

#[test]
fn atomics_want_eight_aligned_bytes() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory.clone(), ALL | Access::REMOTE_ATOMIC);
    let at = |address| table.remote(SCOPE, key, address, 8, Access::REMOTE_ATOMIC).unwrap();
    assert_eq!(at(base + 8).update_u64(|old| old + 5), Ok(0));
    assert_eq!(at(base + 8).update_u64(|old| old + 5), Ok(5));
    assert_eq!(memory.to_vec(8, 8), 10u64.to_ne_bytes());
    assert_eq!(at(base + 4).update_u64(|old| old), Err(AtomicError::Misaligned));
}

#[test]
fn data_in_two_parts_is_placed_whole() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(40).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory.clone(), ALL);
    let data: Vec<u8> = (1..=40).collect();
    for cut in 0..=40 {
        memory.write(0, &[0; 40]);
        let (head, tail) = data.split_at(cut);
        table.remote(SCOPE, key, base, 40, Access::REMOTE_WRITE).unwrap().write(FrameBytes { head, tail }).unwrap();
        assert_eq!(memory.to_vec(0, 40), data, "cut at {cut}");
    }
}

/// At every place and of every length, in one part or two: a whole word is seen whole or not at all.
#[test]
fn the_last_bytes_are_those_that_one_instruction_stores() {
    for (end, len, last) in [(64, 40, 8), (64, 8, 8), (64, 7, 4), (60, 40, 4), (62, 40, 2), (63, 40, 1), (64, 1, 1)] {
        assert_eq!(last_bytes(end, len), last, "{len} bytes to {end}");
    }
    let mut table = table();
    let memory = Arc::new(HostMemory::new(64).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory.clone(), ALL);
    // Miri takes a minute for each of them.
    let every = if cfg!(miri) { 5 } else { 1 };
    for start in 0..16 {
        for len in (1..=24usize).step_by(every) {
            let data: Vec<u8> = (1..=len as u8).collect();
            let (head, tail) = data.split_at(len.saturating_sub(3));
            memory.write(0, &[0xff; 64]);
            let span = table.remote(SCOPE, key, base + start as u64, len as u64, Access::REMOTE_WRITE).unwrap();
            span.write(FrameBytes { head, tail }).unwrap();
            let mut expected = [0xff; 64];
            expected[start..start + len].copy_from_slice(&data);
            assert_eq!(memory.to_vec(0, 64), expected, "{len} bytes at {start}");
        }
    }
}

#[cfg(not(miri))] // it has no signals
#[test]
fn borrowed_memory_that_was_unmapped_is_an_access_error() {
    let mut table = table();
    let lent = HostMemory::new(8192).unwrap();
    let populated = Lent::populate(lent.as_ptr(), 8192, ALL | Access::REMOTE_ATOMIC).unwrap();
    // SAFETY: nobody else uses the memory.
    let key = unsafe { table.register_borrowed(PD, populated, 0x10_0000) };
    fn at(table: &MemoryTable, key: Key, address: u64) -> Span<'_> {
        table.remote(SCOPE, key, address, 8, Access::REMOTE_WRITE).unwrap()
    }
    at(&table, key, 0x10_0008).write(FrameBytes::from(&b"12345678"[..])).unwrap();
    assert_eq!(lent.to_vec(8, 8), b"12345678");
    drop(lent);
    let span = at(&table, key, 0x10_0008);
    assert_eq!(span.read(&mut [0; 8]), Err(AccessError::Vanished(key)));
    assert_eq!(span.write(FrameBytes::from(&[0; 8][..])), Err(AccessError::Vanished(key)));
    assert_eq!(span.update_u64(|old| old), Err(AtomicError::Access(AccessError::Vanished(key))));
    table.deregister(key).unwrap();
}

/// A page that is not there shows the order: where the others cannot be written, the last bytes, by which programs know that
/// all has come, must not be.
#[cfg(not(miri))] // it has no signals
#[test]
fn the_last_bytes_are_not_written_before_the_others() {
    const PAGE: usize = 4096;
    let mut table = table();
    let lent = HostMemory::new(2 * PAGE).unwrap();
    let populated = Lent::populate(lent.as_ptr(), 2 * PAGE as u64, ALL).unwrap();
    // SAFETY: nobody else uses the memory, which outlives the region.
    let key = unsafe { table.register_borrowed(PD, populated, 0x10_0000) };
    let protect = |protection| {
        // SAFETY: the first page is ours, and no Rust expression touches it meanwhile.
        assert_eq!(unsafe { libc::mprotect(lent.as_ptr().cast(), PAGE, protection) }, 0);
    };
    let data: Vec<u8> = (1..=24).collect();
    let write = |cut| {
        let (head, tail) = data.split_at(cut);
        let address = 0x10_0000 + PAGE as u64 - 16;
        table.remote(SCOPE, key, address, 24, Access::REMOTE_WRITE).unwrap().write(FrameBytes { head, tail })
    };
    for cut in 0..=24 {
        protect(libc::PROT_NONE);
        assert_eq!(write(cut), Err(AccessError::Vanished(key)), "cut at {cut}");
        assert_eq!(lent.to_vec(PAGE, 8), [0; 8], "cut at {cut}");
        protect(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(write(cut), Ok(()));
        assert_eq!(lent.to_vec(PAGE - 16, 24), data, "cut at {cut}");
        lent.write(PAGE, &[0; 8]);
    }
    table.deregister(key).unwrap();
}

#[test]
fn reregistration_changes_domain_and_access_but_not_the_key() {
    let mut table = table();
    let memory = Arc::new(HostMemory::new(100).unwrap());
    let base = memory.address();
    let key = table.register(PD, memory, Access::REMOTE_READ);
    let ask =
        |table: &MemoryTable, pd, wanted| table.remote(Scope { pd, queue_pair: QPN }, key, base, 1, wanted).is_ok();
    assert!(!ask(&table, PD, Access::REMOTE_WRITE));
    table.reregister(key, Some(Pd(5)), Some(ALL)).unwrap();
    assert!(ask(&table, Pd(5), Access::REMOTE_WRITE) && !ask(&table, PD, Access::REMOTE_READ));
}
