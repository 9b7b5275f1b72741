//! The network between the clusters is cut at every request of every command.

use tec_core::migrate::Role;
use tec_e2e::kube::Link;

use super::pair::Pair;

/// No command needs more requests than this for two machines.
const MOST: u64 = 200;
const VERBS: [&str; 4] = ["apply", "cutover", "rollback", "cutover"];

async fn cut_everywhere(pair: &Pair, link: &Link) {
    for verb in VERBS {
        let mut requests = 1;
        loop {
            assert!(requests < MOST, "{verb} never ends");
            link.cut_after(requests);
            let ended = pair.migrate(verb);
            let was_cut = link.mend();
            pair.holds(&format!("{verb}, cut after {requests} requests")).await;
            if !was_cut {
                assert!(ended.is_ok(), "{verb}: {ended:?}");
                break;
            }
            requests += 1;
        }
    }
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
    assert_eq!(pair.target.keys().await, pair.keys);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_answer_of_the_target_may_be_lost() {
    let pair = Pair::with(2).await;
    cut_everywhere(&pair, &pair.target.link).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_answer_of_the_source_may_be_lost() {
    let pair = Pair::with(2).await;
    cut_everywhere(&pair, &pair.source.link).await;
}
