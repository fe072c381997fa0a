//! Scripts: the commands to the worker, the requests that the client must send, the answers to them, and the replies
//! of the worker. README.md describes their form.

use crate::log::Log;
use crate::scripted_server::{Answer, Request, ScriptedServer};
use crate::stage::{SLACK, Stage};
use crate::worker::{Line, Unsupported, Worker};
use lockward_tests::DEADLINE;
use std::collections::{HashMap, VecDeque};
use std::panic::panic_any;
use std::time::{Duration, Instant};

/// The first words of the commands to a worker. All other lines with `worker:` are replies and events.
const COMMANDS: [&str; 12] = [
    "acquire",
    "cancel",
    "reenter",
    "release",
    "renew",
    "downgrade",
    "status",
    "guarded",
    "resume",
    "lead",
    "resign",
    "pairs",
];

/// One script.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    settings: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The worker gets this command.
    Command(Option<u64>, String),
    /// All of these messages must come, in any order.
    Expect(Vec<Exchange>),
    Answer(Response),
    /// From now on, a request that matches the pattern may come at any time, and gets this response.
    Allow(String, Response),
    /// The script closes all connections.
    Cut,
    /// The script waits.
    Pause(Duration),
    /// No request may come during this time.
    Quiet(Duration),
    /// The shortest and the longest allowed time from the script's last action to the last expected message.
    Elapsed(Duration, Duration),
}

/// An expected message, and in a group also the responses to this message.
#[derive(Clone, Debug)]
struct Exchange {
    expected: Expected,
    responses: Vec<Response>,
}

#[derive(Clone, Debug)]
enum Expected {
    Request(String),
    Reply(Option<u64>, String),
    Event(String),
}

#[derive(Clone, Debug)]
enum Response {
    Send(Answer),
    Cut,
    Silence,
}

impl Script {
    /// All scripts of a file. Each begins with a line `== name`.
    pub(crate) fn parse_all(text: &str) -> Vec<Self> {
        let text: Vec<String> = text.lines().map(expanded).collect();
        text.join("\n").split("\n== ").skip(1).map(Self::parse).collect()
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let name = lines.next().expect("a name").to_owned();
        let mut script = Self { name, settings: Vec::new(), steps: Vec::new() };
        let mut group: Option<Vec<Exchange>> = None;
        for line in lines {
            let step = match line {
                "{" => {
                    group = Some(Vec::new());
                    continue;
                }
                "}" => Step::Expect(group.take().expect("the start of a group")),
                _ => Step::parse(line, &mut script.settings),
            };
            match (&mut group, step) {
                (Some(group), Step::Expect(exchange)) => group.extend(exchange),
                (Some(group), Step::Answer(response)) => {
                    group.last_mut().expect("a request before the answer").responses.push(response);
                }
                (_, step) => script.steps.push(step),
            }
        }
        script
    }

    fn answers_wait(&self) -> bool {
        let is_wait =
            |each: &Exchange| matches!(&each.expected, Expected::Request(words) if words.starts_with("WAIT"));
        self.steps.iter().any(|step| matches!(step, Step::Expect(group) if group.iter().any(is_wait)))
    }

    /// Plays the script with a worker.
    #[track_caller]
    pub(crate) fn play(&self, stage: &Stage) {
        let server = ScriptedServer::start(stage.server, self.answers_wait(), &stage.log);
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        let worker = stage.worker_with(server.port(), &settings);
        let mut player = Player {
            server,
            worker,
            log: stage.log.clone(),
            latest: 0,
            names: HashMap::new(),
            unanswered: VecDeque::new(),
            allowed: Vec::new(),
            acted: Instant::now(),
            waited_from: Instant::now(),
            came: Instant::now(),
            came_before: Instant::now(),
        };
        for step in &self.steps {
            player.play(step);
        }
        if let Some(request) = player.next_request() {
            panic!("the client also sends {:?}", request.words.join(" "));
        }
        // A client may report a loss both by an error and by an event.
        let untaken: Vec<String> =
            player.worker.untaken().into_iter().filter(|line| !line.starts_with("event lost ")).collect();
        assert!(untaken.is_empty(), "the worker also prints {untaken:?}");
    }
}

/// A line of a script. The line `hold LEASE` stands for four lines, in which the worker acquires a lock.
fn expanded(line: &str) -> String {
    let Some(lease) = line.strip_prefix("hold ") else { return line.to_owned() };
    let acquire =
        format!("worker: acquire a k wait=0 lease={lease}\n> LOCK.ACQUIRE k $owner PX {lease} HOLDS 1");
    format!("{acquire}\n< [7, 1, {lease}]\nworker: held 7")
}

impl Step {
    fn parse(line: &str, settings: &mut Vec<String>) -> Self {
        let one = |expected| Self::Expect(vec![Exchange { expected, responses: Vec::new() }]);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let millis = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
        match word {
            ">" => one(Expected::Request(rest.to_owned())),
            "<" => Self::Answer(Response::parse(rest)),
            "allow" => {
                let (pattern, response) = rest.split_once(" < ").expect("a request and its answer");
                Self::Allow(pattern.to_owned(), Response::parse(response))
            }
            "cut" => Self::Cut,
            "pause" => Self::Pause(millis(rest)),
            "quiet" => Self::Quiet(millis(rest)),
            "elapsed" => {
                let (least, most) = rest.split_once("..").expect("a range of milliseconds");
                Self::Elapsed(millis(least), millis(most))
            }
            "settings:" => {
                settings.extend(rest.split_whitespace().map(str::to_owned));
                Self::Pause(Duration::ZERO)
            }
            "worker" | "worker:" => {
                let (id, text) = match rest.split_once(": ") {
                    Some((id, text)) if word == "worker" => (Some(id.parse().expect("an ID")), text),
                    _ => (None, rest),
                };
                let first = text.split(' ').next().unwrap_or_default();
                match text.strip_prefix("event ") {
                    Some(event) => one(Expected::Event(event.to_owned())),
                    // `handle NAME` is a command, and `handle $name` is the reply to this command. The `$` tells the
                    // reply from the command.
                    None if COMMANDS.contains(&first) || first == "handle" && !text.contains('$') => {
                        Self::Command(id, text.to_owned())
                    }
                    None => one(Expected::Reply(id, text.to_owned())),
                }
            }
            _ => panic!("this is no step of a script: {line:?}"),
        }
    }
}

impl Response {
    fn parse(text: &str) -> Self {
        let number = |text: &str| text.trim().parse().expect("an integer");
        Self::Send(match text.as_bytes() {
            b"cut" => return Self::Cut,
            b"silence" => return Self::Silence,
            b"null" => Answer::Null,
            [b'-', ..] => Answer::Error(text[1..].to_owned()),
            [b'+', ..] => Answer::Simple(text[1..].to_owned()),
            [b'"', .., b'"'] => Answer::Bulk(text[1..text.len() - 1].to_owned()),
            [b'[', .., b']'] => Answer::Ints(text[1..text.len() - 1].split(',').map(number).collect()),
            _ => Answer::Int(number(text)),
        })
    }

    fn give(&self, request: &Request, log: &Log) {
        match self {
            Self::Send(answer) => request.answer(answer),
            Self::Cut => request.cut(),
            Self::Silence => log.add(format_args!("{} < silence", request.connection())),
        }
    }
}

struct Player {
    server: ScriptedServer,
    worker: Worker,
    log: Log,
    /// The ID of the last command for which the script names no ID.
    latest: u64,
    names: HashMap<String, String>,
    unanswered: VecDeque<Request>,
    allowed: Vec<(String, Response)>,
    /// The time of the last action of the script.
    acted: Instant,
    /// The time of the last action of the script before the last message.
    waited_from: Instant,
    /// The time of the last message.
    came: Instant,
    /// The time of the message before the last message, or `waited_from` if `waited_from` was earlier.
    came_before: Instant,
}

impl Player {
    #[track_caller]
    fn play(&mut self, step: &Step) {
        match step {
            Step::Command(id, text) => {
                let text = self.filled_in(text);
                self.acted = Instant::now();
                match id {
                    Some(id) => self.worker.send_as(*id, &text),
                    None => self.latest = self.worker.send(&text),
                }
            }
            Step::Expect(group) => self.expect(group),
            Step::Answer(response) => {
                let request = self.unanswered.pop_front().expect("a request before the answer");
                self.acted = Instant::now();
                response.give(&request, &self.log);
            }
            Step::Allow(pattern, response) => {
                self.allowed.retain(|(known, _)| known != pattern);
                self.allowed.push((pattern.clone(), response.clone()));
            }
            Step::Cut => {
                self.acted = Instant::now();
                self.server.cut();
            }
            Step::Pause(time) => {
                self.log.wait(*time, || None::<()>);
            }
            Step::Quiet(time) => {
                if let Some(request) = self.log.clone().wait(*time, || self.next_request()) {
                    panic!(
                        "the client sends {:?}, but nothing is expected for {time:?}",
                        request.words.join(" ")
                    );
                }
            }
            Step::Elapsed(least, most) => {
                // The client's timer started after the client's previous message. The timer may have started before the
                // script's last action, because the script may have acted late. So the lower bound counts from the
                // previous message.
                let at_least = self.came.saturating_duration_since(self.waited_from);
                let at_most = self.came.saturating_duration_since(self.came_before);
                assert!(
                    *least <= at_most && at_least <= *most + SLACK,
                    "the message came after {at_least:?}, but {least:?} to {most:?} is expected"
                );
            }
        }
    }

    /// The first request that no step has taken and that matches no `allow`.
    fn next_request(&mut self) -> Option<Request> {
        loop {
            let request = self.server.next()?;
            if !self.answers_allowed(&request) {
                return Some(request);
            }
        }
    }

    fn answers_allowed(&mut self, request: &Request) -> bool {
        let allowed = self.allowed.clone();
        let found = allowed.iter().find(|(pattern, _)| self.matches(pattern, &request.words));
        if let Some((_, response)) = found {
            response.give(request, &self.log);
        }
        found.is_some()
    }

    /// Waits until all messages of a group have come, in any order.
    #[track_caller]
    fn expect(&mut self, group: &[Exchange]) {
        self.waited_from = self.acted;
        self.came_before = self.came.min(self.acted);
        let mut left: Vec<usize> = (0..group.len()).collect();
        let mut unanswered: Vec<(usize, Request)> = Vec::new();
        while !left.is_empty() {
            let came = self.log.clone().wait(DEADLINE, || self.look(group, &left));
            let Some((place, at, request)) = came else {
                let expected: Vec<String> =
                    left.iter().map(|place| group[*place].expected.to_string()).collect();
                panic!(
                    "nothing comes, but {} is expected; the worker has also printed {:?}",
                    expected.join(" or "),
                    self.worker.untaken()
                );
            };
            left.retain(|other| *other != place);
            self.came = at;
            let Some(request) = request else { continue };
            let responses = &group[place].responses;
            if responses.is_empty() {
                unanswered.push((place, request));
            } else {
                self.acted = Instant::now();
                responses.iter().for_each(|response| response.give(&request, &self.log));
            }
        }
        unanswered.sort_by_key(|(place, _)| *place);
        self.unanswered.extend(unanswered.into_iter().map(|(_, request)| request));
    }

    /// The next message of the group that has come: its place in the group, its time, and the request if the message is
    /// a request. `left` are the places of the messages that have not come yet.
    #[track_caller]
    fn look(&mut self, group: &[Exchange], left: &[usize]) -> Option<(usize, Instant, Option<Request>)> {
        if self.worker.take_now(|line| line.ends_with(" unsupported")).is_some() {
            panic_any(Unsupported);
        }
        for place in left {
            let line = match &group[*place].expected {
                Expected::Request(_) => None,
                Expected::Reply(id, pattern) => {
                    let start = format!("{} ", id.unwrap_or(self.latest));
                    self.said(&start, pattern)
                }
                Expected::Event(pattern) => self.said("event ", pattern),
            };
            if let Some(line) = line {
                return Some((*place, line.at, None));
            }
        }
        let wants_request = |place: &&usize| matches!(group[**place].expected, Expected::Request(_));
        while let Some(request) = self.server.next() {
            if !left.iter().any(|place| wants_request(&place)) {
                if self.answers_allowed(&request) {
                    continue;
                }
                // A step that expects only lines of the worker leaves other requests to the next steps.
                self.server.put_back(request);
                break;
            }
            for place in left.iter().filter(wants_request) {
                let Expected::Request(pattern) = &group[*place].expected else { continue };
                if self.matches(pattern, &request.words) {
                    return Some((*place, request.at, Some(request)));
                }
            }
            if self.answers_allowed(&request) {
                continue;
            }
            let expected: Vec<String> = left.iter().map(|place| group[*place].expected.to_string()).collect();
            panic!(
                "the client sends {:?}, but {} is expected",
                request.words.join(" "),
                expected.join(" or ")
            );
        }
        None
    }

    /// Takes a line of the worker that begins with `start`. A reply must match the pattern. This function leaves an
    /// event with a different first word in the output.
    #[track_caller]
    fn said(&mut self, start: &str, pattern: &str) -> Option<Line> {
        let word = pattern.split(' ').next().unwrap_or_default();
        let is_event = start == "event ";
        let line = self.worker.take_now(|line| {
            line.strip_prefix(start).is_some_and(|rest| !is_event || rest.split(' ').next() == Some(word))
        })?;
        let words: Vec<String> = line.text[start.len()..].split(' ').map(str::to_owned).collect();
        assert!(
            self.matches(pattern, &words),
            "the worker prints {:?}, but \"{start}{pattern}\" is expected",
            line.text
        );
        Some(line)
    }

    /// Whether words match a pattern. If they match, stores the words for the new names in the pattern.
    fn matches(&mut self, pattern: &str, words: &[String]) -> bool {
        let patterns: Vec<&str> = pattern.split(' ').collect();
        let (patterns, is_open) = match patterns.split_last() {
            Some((&"...", rest)) => (rest, true),
            _ => (&*patterns, false),
        };
        if words.len() < patterns.len() || !is_open && words.len() > patterns.len() {
            return false;
        }
        let mut names = self.names.clone();
        let fits = patterns.iter().zip(words).all(|(pattern, word)| {
            let Some(name) = pattern.strip_prefix('$') else { return pattern == word };
            if let Some((least, most)) = name.split_once("..") {
                let number = |text: &str| text.parse::<i64>().ok();
                return number(word)
                    .is_some_and(|word| number(least) <= Some(word) && Some(word) <= number(most));
            }
            names.entry(name.to_owned()).or_insert_with(|| word.clone()) == word
        });
        if fits {
            self.names = names;
        }
        fits
    }

    fn filled_in(&self, text: &str) -> String {
        let word = |word: &str| match word.strip_prefix('$') {
            Some(name) => self
                .names
                .get(name)
                .unwrap_or_else(|| panic!("the script uses ${name} before it has a word"))
                .clone(),
            None => word.to_owned(),
        };
        text.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request(pattern) => write!(out, "{pattern:?}"),
            Self::Reply(Some(id), pattern) => write!(out, "{pattern:?} of command {id} from the worker"),
            Self::Reply(None, pattern) => write!(out, "{pattern:?} from the worker"),
            Self::Event(pattern) => write!(out, "\"event {pattern}\" from the worker"),
        }
    }
}
