//! Follows the AttestationRecords, and wakes what depends on them.

use kube::ResourceExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};

use super::attempt::News;
use super::context::{Context, Task};
use super::summary::Summary;
use crate::api::AttestationRecord;

/// Records per page of the list: a page is in memory as it came, some 80 KiB each.
const PAGE: u32 = 50;

/// Follows the records forever.
pub(super) async fn follow(ctx: &Context) {
    let events =
        watcher(ctx.objects::<AttestationRecord>(), watcher::Config::default().page_size(PAGE));
    let events = events.modify(|record| Summary::put(record, ctx.latest()));
    let changed = |record: &AttestationRecord| {
        let id = record.spec.machine.as_deref().unwrap_or_default();
        for machine in ctx.caches.machines.indexed(id) {
            // A fleet that attests all the time must not be reconciled all the time.
            let task = Task::Machine(machine.name_any());
            if !News::of(ctx, &machine).is_empty() {
                ctx.queue.wake(task);
            } else if let Some(later) = News::later(ctx, &machine) {
                ctx.queue.wake_after(task, later);
            }
        }
        ctx.untrusted.notify_one();
    };
    ctx.caches.records.follow(events, changed).await;
}
