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
    answers: Answers<A>,
}

/// Answers that are kept, by the questions' keys.
#[derive(Debug)]
struct Answers<A> {
    slots: std::sync::Mutex<BTreeMap<String, Slot<A>>>,
    max: usize,
}

/// An answer and until when it is fresh. Who asks the same meanwhile waits for the lock.
type Slot<A> = Arc<Mutex<Option<(Instant, Answer<A>)>>>;

#[derive(Debug)]
struct Asked<Q, A> {
    question: Q,
    answer: oneshot::Sender<Answer<A>>,
}

/// Questions that wait. Ours: who comes later is asked to try again.
const WAITING_MAX: usize = 16;
/// How long one answer may take. Ours: planning for the largest configuration takes less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// After an answer the thread rests this many times what it took, so that questions take a tenth of a gateway, or of a
/// processor, at most, but no longer than [`REST_MAX`].
const REST_FACTOR: u32 = 9;
const REST_MAX: Duration = Duration::from_secs(2);

impl<Q: Send + 'static, A: Send + Sync + 'static> Asker<Q, A> {
    /// Starts the thread, which ends with the source. `answer` is what it does, and `answers_max` as many are kept,
    /// and those that pages wait for.
    pub(super) fn start(
        shared: Arc<Shared>,
        name: &str,
        answers_max: usize,
        mut answer: impl FnMut(&Shared, &Q) -> Answer<A> + Send + 'static,
    ) -> Self {
        let (questions, waiting) = mpsc::sync_channel(WAITING_MAX);
        thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&shared, &waiting, &mut answer))
            .expect("a thread can be started");
        Self {
            questions,
            answers: Answers::new(answers_max),
        }
    }

    /// The answer to a question, at most `fresh_for` old. Questions with one `key` are the same.
    pub(super) async fn ask(&self, key: String, question: Q, fresh_for: Duration) -> Answer<A> {
        let slot = self.answers.slot(key, Instant::now());
        let mut kept = slot.lock().await;
        if let Some((until, answer)) = &*kept
            && Instant::now() < *until
        {
            return answer.clone();
        }
        // Nothing old is kept while a new one is waited for.
        *kept = None;
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
        *kept = Some((Instant::now() + fresh_for, answer.clone()));
        answer
    }
}

impl<A> Answers<A> {
    fn new(max: usize) -> Self {
        Self {
            slots: std::sync::Mutex::default(),
            max,
        }
    }

    /// The place of an answer. Answers that are not fresh are forgotten, and at too many those that will be first.
    fn slot(&self, key: String, now: Instant) -> Slot<A> {
        let mut slots = lock(&self.slots);
        slots.retain(|_, slot| idle_until(slot).is_none_or(|until| until > Some(now)));
        while slots.len() >= self.max && !slots.contains_key(&key) {
            let idle = slots
                .iter()
                .filter_map(|(key, slot)| Some((idle_until(slot)?, key)));
            let Some((_, oldest)) = idle.min() else {
                break;
            };
            let oldest = oldest.clone();
            slots.remove(&oldest);
        }
        Arc::clone(slots.entry(key).or_default())
    }
}

/// Until when an answer that no page waits for is fresh; `None`: one waits.
fn idle_until<A>(slot: &Slot<A>) -> Option<Option<Instant>> {
    if Arc::strong_count(slot) > 1 {
        return None;
    }
    let kept = slot.try_lock().ok()?;
    Some(kept.as_ref().map(|(until, _)| *until))
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

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(10);

    fn answer(answers: &Answers<u32>, key: &str, now: Instant) {
        let slot = answers.slot(key.to_owned(), now);
        *slot.try_lock().unwrap() = Some((now + FRESH, Ok(Arc::new(0))));
    }

    fn keys(answers: &Answers<u32>) -> Vec<String> {
        lock(&answers.slots).keys().cloned().collect()
    }

    #[test]
    fn answers_are_forgotten_when_they_are_old() {
        let (answers, begun) = (Answers::new(8), Instant::now());
        answer(&answers, "a", begun);
        answer(&answers, "b", begun + FRESH / 2);
        assert_eq!(keys(&answers), ["a", "b"]);
        answer(&answers, "c", begun + FRESH);
        assert_eq!(keys(&answers), ["b", "c"]);
    }

    #[test]
    fn a_bounded_number_of_answers_is_kept_and_those_that_are_waited_for() {
        let (answers, begun) = (Answers::new(3), Instant::now());
        let waited_for = answers.slot("waited for".to_owned(), begun);
        for number in 0..100 {
            let now = begun + Duration::from_millis(number);
            answer(&answers, &number.to_string(), now);
        }
        assert_eq!(keys(&answers), ["98", "99", "waited for"]);
        drop(waited_for);
        answer(&answers, "a", begun + FRESH * 2);
        assert_eq!(keys(&answers), ["a"]);
    }
}
