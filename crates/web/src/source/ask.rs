//! A thread that answers single questions one after another, and the answers while these are fresh.

use std::{
    collections::BTreeMap,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::{Request, Response, client::Client};
use tokio::sync::{Mutex, oneshot};

use super::{
    Fault, Shared, lock,
    poll::{connect, is_broken},
};

/// An answer to a question, the same for all who ask it.
pub(crate) type Answer<A = Response> = Result<Arc<A>, Fault>;

/// See the module.
#[derive(Debug)]
pub(super) struct Asker<Q, A> {
    questions: SyncSender<Asked<Q, A>>,
    answers: std::sync::Mutex<BTreeMap<String, Slot<A>>>,
}

/// An answer and its time. Who asks the same meanwhile waits for the lock.
type Slot<A> = Arc<Mutex<Option<(Instant, Answer<A>)>>>;

#[derive(Debug)]
struct Asked<Q, A> {
    question: Q,
    answer: oneshot::Sender<Answer<A>>,
}

/// Questions that wait. Ours: who comes later is asked to try again.
const WAITING_MAX: usize = 16;
/// Answers that are kept; those that no page waits for are forgotten at more. Ours.
const ANSWERS_MAX: usize = 64;
/// How long one answer may take. Ours: planning for the largest configuration takes less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// After an answer the thread rests this many times what it took, so that questions take a tenth of a gateway, or of a
/// processor, at most, but no longer than [`REST_MAX`].
const REST_FACTOR: u32 = 9;
const REST_MAX: Duration = Duration::from_secs(2);

impl<Q: Send + 'static, A: Send + Sync + 'static> Asker<Q, A> {
    /// Starts the thread, which ends with the source. `answer` is what it does.
    pub(super) fn start(
        shared: Arc<Shared>,
        name: &str,
        mut answer: impl FnMut(&Shared, &Q) -> Answer<A> + Send + 'static,
    ) -> Self {
        let (questions, waiting) = mpsc::sync_channel(WAITING_MAX);
        thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&shared, &waiting, &mut answer))
            .expect("a thread can be started");
        Self {
            questions,
            answers: std::sync::Mutex::default(),
        }
    }

    /// The answer to a question, at most `fresh_for` old. Questions with one `key` are the same.
    pub(super) async fn ask(&self, key: String, question: Q, fresh_for: Duration) -> Answer<A> {
        let slot = self.slot(key);
        let mut kept = slot.lock().await;
        if let Some((at, answer)) = &*kept
            && at.elapsed() < fresh_for
        {
            return answer.clone();
        }
        let (sender, receiver) = oneshot::channel();
        let asked = Asked {
            question,
            answer: sender,
        };
        let answer = match self.questions.try_send(asked) {
            Ok(()) => receiver.await.unwrap_or_else(|_| Err(ended())),
            Err(TrySendError::Full(_)) => return Err(busy()),
            Err(TrySendError::Disconnected(_)) => Err(ended()),
        };
        *kept = Some((Instant::now(), answer.clone()));
        answer
    }

    fn slot(&self, key: String) -> Slot<A> {
        let mut answers = lock(&self.answers);
        if answers.len() >= ANSWERS_MAX && !answers.contains_key(&key) {
            answers.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(answers.entry(key).or_default())
    }
}

fn run<Q, A>(
    shared: &Shared,
    waiting: &mpsc::Receiver<Asked<Q, A>>,
    answer: &mut impl FnMut(&Shared, &Q) -> Answer<A>,
) {
    while !shared.has_ended() {
        let asked = match waiting.recv_timeout(Duration::from_secs(1)) {
            Ok(asked) => asked,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Its viewer has gone.
        if asked.answer.is_closed() {
            continue;
        }
        let begun = Instant::now();
        let answer = answer(shared, &asked.question);
        // A viewer that has gone needs no answer.
        let _ = asked.answer.send(answer);
        shared.rest((begun.elapsed() * REST_FACTOR).min(REST_MAX));
    }
}

/// Asks gateways.
pub(super) fn of_gateway() -> impl FnMut(&Shared, &Request) -> Answer + Send + 'static {
    let mut client = None;
    move |shared, request| answer(shared, &mut client, request)
}

fn answer(shared: &Shared, client: &mut Option<Client<UnixStream>>, request: &Request) -> Answer {
    // A connection that a restart has broken is noticed by the question after it, which is asked once more.
    let attempts = match client.is_some() {
        true => 2,
        false => 1,
    };
    let mut last = ended();
    for _ in 0..attempts {
        let connected = match client {
            Some(client) => client,
            None => client.insert(connect(&shared.socket, ANSWER_TIMEOUT)?),
        };
        match connected.request(request) {
            Ok(response) => return Ok(Arc::new(response)),
            Err(error) => {
                last = Fault::unanswered(&error);
                if !is_broken(&error) {
                    break;
                }
                *client = None;
            }
        }
    }
    Err(last)
}

fn busy() -> Fault {
    Fault::new(
        format!("{WAITING_MAX} questions wait already"),
        "try again in some seconds",
    )
}

fn ended() -> Fault {
    Fault::new("the question was not asked", "try again")
}
