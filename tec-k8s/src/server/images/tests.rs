//! Tests with a scripted API server and a stopped clock.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{StreamExt as _, future};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tec_core::testing::{ManualClock, sample};
use tokio::time::advance;
use tower::service_fn;

use super::*;

type Lines = UnboundedReceiver<Bytes>;
type Answer = UnsyncBoxBody<Bytes, Infallible>;

/// What the API server has, how often it was queried, and the watches that it will answer.
#[derive(Default)]
struct Fake {
    objects: Vec<Value>,
    lists: u32,
    watches: VecDeque<Lines>,
    watched: Vec<String>,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Fake>>);

impl Server {
    fn with(objects: &[Value]) -> Self {
        let server = Self::default();
        server.0.lock().objects = objects.to_vec();
        server
    }

    /// One more watch that will be answered; returns a sender for its events.
    fn watch(&self) -> UnboundedSender<Bytes> {
        let (sender, lines) = unbounded();
        self.0.lock().watches.push_back(lines);
        sender
    }

    fn images(&self) -> WatchedImages {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            future::ready(Ok::<_, tower::BoxError>(server.answer(&request)))
        });
        let clock = Arc::new(ManualClock::new(sample::time(0)));
        WatchedImages::new(KubeRegistry::new(Client::new(service, "n"), "n", clock))
    }

    fn answer(&self, request: &Request<Body>) -> Response<Answer> {
        let query = request.uri().query().unwrap_or_default();
        let mut fake = self.0.lock();
        if !query.contains("watch=true") {
            fake.lists += 1;
            let list = json!({
                "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "ApprovedImageList",
                "metadata": {"resourceVersion": "10"}, "items": fake.objects,
            });
            return Response::new(Full::from(list.to_string()).boxed_unsync());
        }
        fake.watched.push(query.to_owned());
        // A watch that nobody scripted sends nothing.
        let lines = fake.watches.pop_front().unwrap_or_else(|| {
            let (sender, lines) = unbounded();
            std::mem::forget(sender);
            lines
        });
        let frames = lines.map(|line| Ok::<_, Infallible>(http_body::Frame::data(line)));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn object(number: u64, version: &str, revoked: bool) -> Value {
    let mut object =
        serde_json::to_value(api::ApprovedImage::from_core(&sample::image(number))).unwrap();
    object["metadata"]["resourceVersion"] = version.into();
    if revoked {
        object["spec"]["revokedAt"] = "2026-01-01T00:00:00Z".into();
    }
    object
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

/// Lets the watch run until nothing is left to do.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn names(images: &WatchedImages) -> Vec<String> {
    let images = ImageRegistry::list(images).await.unwrap();
    images.iter().map(|image| image.name.to_string()).collect()
}

fn name(number: u64) -> String {
    sample::image_name(number).to_string()
}

/// Does `work` while the watch runs.
async fn beside(images: &WatchedImages, work: impl Future<Output = ()>) {
    tokio::select! {
        () = images.run() => {}
        () = work => {}
    }
}

#[tokio::test(start_paused = true)]
async fn images_are_read_from_memory_and_changes_arrive_by_the_watch() {
    let server = Server::with(&[object(1, "5", false)]);
    let (images, events) = (server.images(), server.watch());
    beside(&images, async {
        settle().await;
        assert_eq!(names(&images).await, [name(1)]);
        events.unbounded_send(line("ADDED", &object(2, "11", false))).unwrap();
        events.unbounded_send(line("MODIFIED", &object(1, "12", true))).unwrap();
        settle().await;
        let listed = ImageRegistry::list(&images).await.unwrap();
        let revoked: Vec<_> = listed.iter().map(|image| image.revoked_at.is_some()).collect();
        assert_eq!(revoked, [true, false]);
        events.unbounded_send(line("DELETED", &object(1, "13", true))).unwrap();
        settle().await;
        assert_eq!(names(&images).await, [name(2)]);
        assert_eq!(server.0.lock().lists, 1, "one list, and everything else by the watch");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_is_believed_for_ten_seconds() {
    let server = Server::with(&[object(1, "5", false)]);
    let (images, _silent) = (server.images(), server.watch());
    beside(&images, async {
        settle().await;
        server.0.lock().objects.clear();
        advance(FRESH).await;
        assert_eq!(names(&images).await, [name(1)]);
        advance(Duration::from_secs(1)).await;
        assert_eq!(names(&images).await, Vec::<String>::new());
        assert_eq!(server.0.lock().lists, 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_watch_shows_that_it_was_alive_and_the_next_one_goes_on_there() {
    let server = Server::with(&[object(1, "5", false)]);
    let images = server.images();
    let (first, _second) = (server.watch(), server.watch());
    beside(&images, async {
        settle().await;
        advance(Duration::from_secs(5)).await;
        let mark = json!({"apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "ApprovedImage", "metadata": {"resourceVersion": "20"}});
        first.unbounded_send(line("BOOKMARK", &mark)).unwrap();
        drop(first);
        settle().await;
        advance(Duration::from_secs(9)).await;
        assert_eq!(names(&images).await, [name(1)]);
        let fake = server.0.lock();
        assert_eq!((fake.lists, fake.watched.len()), (1, 2));
        assert!(fake.watched[0].contains("timeoutSeconds=5"));
        assert!(fake.watched[0].contains("resourceVersion=10"));
        assert!(fake.watched[1].contains("resourceVersion=20"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_leads_to_another_list() {
    let server = Server::with(&[object(1, "5", false)]);
    let images = server.images();
    let (first, _second) = (server.watch(), server.watch());
    beside(&images, async {
        settle().await;
        server.0.lock().objects = vec![object(2, "30", false)];
        let gone = json!({"kind": "Status", "code": 410, "status": "Failure", "reason": "Expired",
            "message": "too old"});
        first.unbounded_send(line("ERROR", &gone)).unwrap();
        settle().await;
        advance(PAUSE).await;
        settle().await;
        assert_eq!(names(&images).await, [name(2)]);
        assert_eq!(server.0.lock().lists, 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_its_watch_and_after_a_write_the_api_server_is_asked() {
    let server = Server::with(&[object(1, "5", false)]);
    let images = server.images();
    assert_eq!(names(&images).await, [name(1)]);
    assert_eq!(server.0.lock().lists, 1);
    let _silent = server.watch();
    beside(&images, async {
        settle().await;
        names(&images).await;
        assert_eq!(server.0.lock().lists, 2);
        // The scripted server refuses it, but the outcome of a failed write is unknown.
        let _ = ImageRegistry::put(&images, &sample::image(2)).await;
        let before = server.0.lock().lists;
        names(&images).await;
        assert_eq!(server.0.lock().lists, before + 1);
    })
    .await;
}
