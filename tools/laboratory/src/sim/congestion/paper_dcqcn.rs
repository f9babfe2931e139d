use uroce::congestion::{CongestionControl, Dcqcn, OwnController};
use uroce::time::Duration;

/// DCQCN with the paper's timer of increases, of 55 µs, instead of ConnectX's: so its published analyses can be compared (Zhu et
/// al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, and ECN or Delay: Lessons Learnt from Analysis of
/// DCQCN and TIMELY, CoNEXT 2016).
pub const PAPER_DCQCN: CongestionControl = CongestionControl::Own(OwnController {
    name: "dcqcn-paper",
    reacts_to_marks: true,
    start: |line| Box::new(Dcqcn::with_timer(line, Duration::from_micros(55))),
});
