//! docs/INTEROP.md names a test for all that it says, and each of them exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The tables in which every row has its test, by their headings.
const TABLES: [&str; 8] = [
    "### Attributes of queue pairs",
    "### Attributes of devices and ports",
    "### Shared receive queues",
    "### Rights",
    "### Operations",
    "### Flags of send requests",
    "### Completion statuses",
    "### Asynchronous events",
];

fn document() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/INTEROP.md")).unwrap()
}

/// What stands in backticks and is `file.rs::function`.
fn tests_named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|word| word.split_once(".rs::"))
}

#[test]
fn every_test_that_the_document_names_exists() {
    let document = document();
    // Short names for the folders that rows name most.
    let folders: Vec<(&str, &str)> =
        document.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`')?.split_once("` is `")).collect();
    let named: BTreeSet<_> = tests_named(&document).collect();
    assert!(named.len() > 30, "only {} tests are named", named.len());
    for (file, function) in named {
        let file = folders
            .iter()
            .find_map(|(short, folder)| Some(format!("{folder}{}.rs", file.strip_prefix(short)?)))
            .unwrap_or_else(|| format!("{file}.rs"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("docs/INTEROP.md names {file}: {e}"));
        assert!(source.contains(&format!("fn {function}(")), "docs/INTEROP.md names {file}::{function}: there is none");
    }
}

#[test]
fn every_row_of_the_tables_names_its_test() {
    let document = document();
    for heading in TABLES {
        let (_, rest) = document.split_once(heading).unwrap_or_else(|| panic!("docs/INTEROP.md has no {heading}"));
        let table = rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let rows: Vec<_> = table.skip(2).collect();
        assert!(!rows.is_empty(), "{heading} has no rows");
        for row in rows {
            assert!(tests_named(row).count() > 0, "no test in {row}");
        }
    }
}

/// All 22 statuses that the verbs had from the start, and the masks of `ibv_modify_qp`, have their rows.
#[test]
fn the_tables_are_complete() {
    let document = document();
    let statuses = "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR \
        LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR \
        REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR";
    let attributes = "STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT RETRY_CNT \
        RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP DEST_QPN \
        RATE_LIMIT";
    let operations = "SEND SEND_WITH_IMM SEND_WITH_INV RDMA_WRITE RDMA_WRITE_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP \
        ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW TSO DRIVER1";
    for (prefix, names) in [("IBV_WC_", statuses), ("IBV_QP_", attributes), ("IBV_WR_", operations)] {
        for name in names.split_whitespace() {
            let name = format!("`{prefix}{name}`");
            let rows =
                document.lines().filter(|line| line.starts_with('|') && line[1..].trim_start().starts_with(&name));
            assert_eq!(rows.count(), 1, "rows that begin with {name}");
        }
    }
}
