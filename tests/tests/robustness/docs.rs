//! Checks README.md and docs/ against real servers.
//!
//! A session is a fenced block with the info string `redis`. Each session runs on its own server.
//!
//! ```text
//! alice> LOCK.ACQUIRE order:42 alice         a command on the connection `alice`; the name may be empty
//! 1) (integer) 1795255079187823              the reply to this command, as redis-cli shows it
//! 2) (integer) 1
//! bob> LOCK.ACQUIRE order:42 bob BLOCK 60000
//! (waits)                                    the client is blocked
//! alice> LOCK.RELEASE order:42 alice
//! (integer) 0
//! bob:                                       the next reply on the connection `bob`, or after `-> ` the next push
//! 1) (integer) 1795255081422190
//! 2) (integer) 1
//! ```
//!
//! These values may differ from run to run, and everything else must be equal:
//!
//! - A number of 13 digits or more is a fencing token. In the whole session, also in commands, the same number is the
//!   same token, and a larger number is a larger token.
//! - In an integer reply, a number of 4 to 12 digits matches any number.
//! - A UUID matches any UUID. In the whole session, the same UUID on the page is the same real UUID.
//! - `...` matches the rest of a line. A `...` alone on the last line of a reply matches all further lines.

use lockward_tests::{Client, DEADLINE, Reply, Server, repository};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WAITS: &str = "(waits)\n";

/// The text at the beginning of a line in which redis-cli shows a push message.
const PUSHED: &str = "-> ";

#[test]
fn the_sessions_in_the_docs_are_what_the_server_replies() {
    let mut played = 0;
    let mut wrong = Vec::new();
    let mut pages_with_sessions = BTreeSet::new();
    for page in pages() {
        for session in sessions(&page) {
            played += 1;
            wrong.extend(play(&session).err());
            pages_with_sessions.insert(page.name.clone());
        }
    }
    let expected = [
        "README.md",
        "docs/commands/README.md",
        "docs/events.md",
        "docs/operating.md",
        "docs/quick-start.md",
    ];
    for page in expected {
        assert!(pages_with_sessions.contains(page), "no session in {page}");
    }
    assert!(wrong.is_empty(), "{} of {played} sessions:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn a_wrong_session_fails_its_test() {
    let wrong = [
        ("another reply", "> LOCK.RELEASE lock a HOLDS 0\n(integer) 1\n"),
        ("another error", "> LOCK.RELEASE lock a\n(error) NOTHELD the lock is held\n"),
        ("less than the whole reply", "> LOCK.ACQUIRE lock a\n1) (integer) 1795255079187823\n"),
        (
            "a new token is shown as the token of before",
            "> LOCK.ACQUIRE lock a\n1) (integer) 1795255079187823\n2) (integer) 1\n\
             > LOCK.ACQUIRE other a\n1) (integer) 1795255079187823\n2) (integer) 1\n",
        ),
        (
            "the token of before is shown as a new token",
            "> LOCK.ACQUIRE lock a\n1) (integer) 1795255079187823\n2) (integer) 1\n\
             > LOCK.RENEW lock a\n(integer) 1795255079187824\n",
        ),
        (
            "a larger token is shown as a smaller one",
            "> LOCK.ACQUIRE lock a\n1) (integer) 1795255079187823\n2) (integer) 1\n\
             > LOCK.ACQUIRE other a\n1) (integer) 1795255079187822\n2) (integer) 1\n",
        ),
        ("a reply is shown as a wait", "> LOCK.INFO lock\n(waits)\n"),
        (
            "a reply that is not shown",
            "> LOCK.ACQUIRE lock a PX 20\n1) (integer) 1795255079187823\n2) (integer) 1\n\
             b> LOCK.ACQUIRE lock b BLOCK 0\n(waits)\n> BLPOP none 0.5\n(nil)\n",
        ),
        (
            "a push of another key",
            "a> HELLO 3\n...\na> CLIENT TRACKING ON\nOK\na> LOCK.INFO lock\n(nil)\n\
             b> SET lock value\nOK\na:\n-> invalidate: 'other'\n",
        ),
        (
            "a push that is not shown",
            "> HELLO 3\n...\n> CLIENT TRACKING ON\nOK\n> LOCK.INFO lock\n(nil)\nb> SET lock value\nOK\n",
        ),
    ];
    for (what, text) in wrong {
        let page = Page { name: what.to_owned(), text: format!("```redis\n{text}```\n") };
        let [session] = sessions(&page).try_into().unwrap_or_else(|_| panic!("{what}: no session"));
        assert!(play(&session).is_err(), "the wrong session passes: {what}");
    }
}

#[test]
fn every_command_has_its_page() {
    let server = Server::start();
    let mut client = server.client();
    let names = client.call("COMMAND LIST FILTERBY MODULE lock");
    let public: BTreeSet<String> =
        names.items().iter().map(Reply::text).filter(|name| !name.starts_with("lock._")).collect();
    assert_eq!(public.len(), 6, "{public:?}");
    for name in public {
        let page = read(&repository().join(format!("docs/commands/{name}.md")));
        let title = format!("# {}\n", name.to_uppercase());
        assert!(page.starts_with(&title), "{name} is not the title of its page");
        let described = client.call(["COMMAND", "DOCS", &name]);
        for field in ["complexity", "since"] {
            let described_as = described.field(&name).field(field).text();
            let described_as = described_as.trim_end_matches('.');
            assert!(page.contains(described_as), "{name} does not say {field}: {described_as}");
        }
        assert!(page.contains("```redis\n"), "{name} shows no session");
    }
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let page = read(&repository().join("docs/settings.md"));
    let server = Server::start();
    let settings = server.client().call("CONFIG GET lock.*");
    for name in settings.field_names() {
        let default = settings.field(&name).text();
        let row = format!("| `{name}` | {default} |");
        assert!(page.contains(&row), "no row {row}");
    }
}

#[test]
fn every_page_can_be_found() {
    let pages: BTreeMap<String, String> = pages().into_iter().map(|page| (page.name, page.text)).collect();
    let first = "docs/README.md".to_owned();
    let mut found = BTreeSet::from([first.clone()]);
    let mut next = vec![first];
    while let Some(name) = next.pop() {
        let folder = Path::new(&name).parent().expect("a folder");
        // Each page must have a link on an index page (README.md).
        let is_index = name.ends_with("/README.md");
        for target in links(&pages[&name]).filter(|_| is_index) {
            let there = folder.join(target.split('#').next().unwrap_or_default()).display().to_string();
            if pages.contains_key(&there) && !found.contains(&there) {
                next.push(there.clone());
                found.insert(there);
            }
        }
    }
    let lost: Vec<&String> =
        pages.keys().filter(|name| name.starts_with("docs/") && !found.contains(*name)).collect();
    assert!(lost.is_empty(), "no path of indexes leads from docs/README.md to {lost:?}");
}

#[test]
fn every_error_is_documented() {
    let source = read(&repository().join("src/errors.rs"));
    let page = read(&repository().join("docs/errors.md"));
    // These internal errors, which no client receives, need no documentation.
    let internal = [
        "ERR malformed changes, or changes of a later version of the module",
        "ERR invalid expire time, too long",
    ];
    let is_error = |text: &&str| {
        text.split_once(' ').is_some_and(|(word, _)| word.bytes().all(|b| b.is_ascii_uppercase()))
    };
    let texts = source.split('"').skip(1).step_by(2).filter(is_error).filter(|text| !internal.contains(text));
    let mut errors = 0;
    for error in texts {
        errors += 1;
        let begin = error.split('{').next().unwrap_or_default();
        assert!(page.contains(&format!("`{begin}")), "no row for {error}");
    }
    assert!(errors > 25, "{errors} errors");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        let here = repository().join(&page.name);
        for target in links(&page.text) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let there = if file.is_empty() { here.clone() } else { here.with_file_name(file) };
            let text = fs::read_to_string(&there).unwrap_or_default();
            let found = there.exists() && (heading.is_empty() || anchors(&text).contains(heading));
            if !found {
                broken.push(format!("{}: {target}", page.name));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

struct Page {
    name: String,
    text: String,
}

struct Session {
    /// The file and the line of the session.
    place: String,
    steps: Vec<Step>,
}

struct Step {
    line: usize,
    who: String,
    /// The command; `None` if the step only awaits a reply.
    command: Option<String>,
    output: String,
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pages() -> Vec<Page> {
    let mut files = pages_below(&repository().join("docs"));
    files.extend(
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| repository().join(name)),
    );
    files.sort();
    let name = |file: &Path| file.strip_prefix(repository()).expect("a file of ours").display().to_string();
    files.iter().map(|file| Page { name: name(file), text: read(file) }).collect()
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let (folders, mut pages): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    pages.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    pages.extend(folders.iter().flat_map(|folder| pages_below(folder)));
    pages
}

/// The targets of a page's links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn sessions(page: &Page) -> Vec<Session> {
    let mut sessions = Vec::new();
    let mut open: Option<Session> = None;
    for (index, text) in page.text.lines().enumerate() {
        let line = index + 1;
        match &mut open {
            None if text == "```redis" => {
                open = Some(Session { place: format!("{}:{line}", page.name), steps: Vec::new() });
            }
            None => {
                let mistaken = text.contains("```redis");
                assert!(
                    !mistaken,
                    "{}:{line}: a session must begin at the margin, and its fence must be ```redis",
                    page.name
                );
            }
            Some(_) if text == "```" => sessions.extend(open.take()),
            Some(session) => match (prompt(text), session.steps.last_mut()) {
                (Some((who, command)), _) => {
                    let (who, command) = (who.to_owned(), command.map(str::to_owned));
                    session.steps.push(Step { line, who, command, output: String::new() });
                }
                (None, Some(step)) => step.output.extend([text, "\n"]),
                (None, None) => panic!("{}: a session must begin with a command", session.place),
            },
        }
    }
    assert!(open.is_none(), "{}: the session has no end", page.name);
    sessions
}

/// The connection and the command of a step: `alice> PING` or `> PING`. A step `alice:` has no command and only awaits
/// a reply.
fn prompt(line: &str) -> Option<(&str, Option<&str>)> {
    let is_name = |who: &str| who.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if let Some((who, command)) = line.split_once("> ").filter(|(who, _)| is_name(who)) {
        return Some((who, Some(command)));
    }
    let who = line.strip_suffix(':').filter(|who| !who.is_empty() && is_name(who))?;
    Some((who, None))
}

/// Runs a session on its own server.
fn play(session: &Session) -> Result<(), String> {
    let server = Server::start();
    let mut observer = server.client();
    let mut clients: BTreeMap<&str, (Client, i64)> = BTreeMap::new();
    let mut meanings = Meanings::default();
    for step in &session.steps {
        let (client, id) = clients.entry(&step.who).or_insert_with(|| {
            let mut client = server.client();
            let id = client.id();
            (client, id)
        });
        let wrong = |what: String| Err(format!("{}, line {}: {what}", session.place, step.line));
        if let Some(command) = &step.command {
            client.send(words(command).iter().map(|word| meanings.of_word(word)).collect::<Vec<_>>());
        }
        if step.output == WAITS {
            if let Some(reply) = reply_of_no_waiter(client, *id, &mut observer) {
                return wrong(format!("the client does not wait, but gets\n{reply}"));
            }
            continue;
        }
        if step.output.starts_with(PUSHED) {
            let real = pushed(&client.push());
            if step.output != real {
                return wrong(format!("the page shows\n{}but the server sends\n{real}", step.output));
            }
            continue;
        }
        match client.reply_within(DEADLINE) {
            Ok(reply) => {
                let real = shown(&reply);
                if !meanings.agree(&step.output, &real) {
                    return wrong(format!("the page shows\n{}but the server sends\n{real}", step.output));
                }
            }
            Err(silence) => return wrong(format!("no reply: {silence:?}")),
        }
    }
    for (who, (client, _)) in &mut clients {
        if let Ok(reply) = client.reply_within(Duration::from_millis(1)) {
            return Err(format!(
                "{}: the page does not show what {who} receives\n{}",
                session.place,
                shown(&reply)
            ));
        }
        if let Some(push) = client.unread_push() {
            return Err(format!(
                "{}: the page does not show what {who} receives\n{}",
                session.place,
                pushed(&push)
            ));
        }
    }
    if meanings.keep_order() {
        Ok(())
    } else {
        Err(format!(
            "{}: the tokens of the page are in another order than those of the server: {meanings:?}",
            session.place
        ))
    }
}

/// Waits until the client has a reply, or until the server has blocked the client (`None`).
fn reply_of_no_waiter(client: &mut Client, id: i64, observer: &mut Client) -> Option<String> {
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        if let Ok(reply) = client.reply_within(Duration::from_millis(2)) {
            return Some(shown(&reply));
        }
        if observer.call(format!("CLIENT LIST ID {id}")).text().contains(" flags=b ") {
            return None;
        }
    }
    Some("nothing".to_owned())
}

/// The words of a command. A word with spaces is in double quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in command.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A message of client-side caching as redis-cli shows it.
fn pushed(push: &Reply) -> String {
    let [kind, Reply::Array(keys)] = push.items() else { panic!("no session shows such a push: {push:?}") };
    let keys: Vec<String> = keys.iter().map(|key| format!("'{}'", key.text())).collect();
    format!("{PUSHED}{}: {}\n", kind.text(), keys.join(", "))
}

/// A reply as redis-cli shows it.
fn shown(reply: &Reply) -> String {
    shown_behind("", reply)
}

fn shown_behind(margin: &str, reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) => format!("{text}\n"),
        Reply::Error(text) => format!("(error) {text}\n"),
        Reply::Int(number) => format!("(integer) {number}\n"),
        Reply::Bulk(bytes) => format!("{}\n", quoted(bytes)),
        Reply::NullBulk | Reply::NullArray | Reply::Null => "(nil)\n".to_owned(),
        Reply::Array(items) if items.is_empty() => "(empty array)\n".to_owned(),
        Reply::Array(items) => {
            let width = items.len().to_string().len();
            let inner = format!("{margin}{}", " ".repeat(width + 2));
            let line = |(index, item)| {
                let margin = if index == 0 { "" } else { margin };
                format!("{margin}{:width$}) {}", index + 1, shown_behind(&inner, item))
            };
            items.iter().enumerate().map(line).collect()
        }
        Reply::Map(pairs) => {
            let width = pairs.len().to_string().len();
            let inner = format!("{margin}{}", " ".repeat(width + 2));
            let line = |(index, (key, value)): (usize, &(Reply, Reply))| {
                let margin = if index == 0 { "" } else { margin };
                let (key, value) = (shown_behind(&inner, key), shown_below(&inner, value));
                format!("{margin}{:width$}# {} =>{value}", index + 1, key.trim_end())
            };
            pairs.iter().enumerate().map(line).collect()
        }
        other => panic!("no session shows such a reply: {other:?}"),
    }
}

/// The text that redis-cli shows for a value in a map. A list or a map stands below its name, any other value after its
/// name.
fn shown_below(margin: &str, reply: &Reply) -> String {
    let nested = match reply {
        Reply::Array(items) => !items.is_empty(),
        Reply::Map(pairs) => !pairs.is_empty(),
        _ => false,
    };
    let begin = if nested { format!("\n{margin}") } else { " ".to_owned() };
    format!("{begin}{}", shown_behind(margin, reply))
}

fn quoted(bytes: &[u8]) -> String {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b'\n' => "\\n".to_owned(),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    format!("\"{}\"", bytes.iter().map(escaped).collect::<String>())
}

/// The real values of the tokens and UUIDs that a session shows.
#[derive(Debug, Default)]
struct Meanings {
    tokens: BTreeMap<u64, u64>,
    names: BTreeMap<String, String>,
}

impl Meanings {
    /// A word of a command. A token or UUID of the session is replaced by its real value.
    fn of_word(&self, word: &str) -> String {
        let token = token(word).and_then(|token| self.tokens.get(&token)).map(u64::to_string);
        token.or_else(|| self.names.get(word).cloned()).unwrap_or_else(|| word.to_owned())
    }

    /// Whether a real reply matches the reply of the session.
    fn agree(&mut self, shown: &str, real: &str) -> bool {
        let mut real = real.lines();
        for shown in shown.lines() {
            if shown == "..." {
                return true;
            }
            if !real.next().is_some_and(|real| self.agree_on_line(shown, real)) {
                return false;
            }
        }
        real.next().is_none()
    }

    fn agree_on_line(&mut self, shown: &str, real: &str) -> bool {
        if let Some(begin) = shown.strip_suffix("...") {
            return real.starts_with(begin);
        }
        let (shown, real) = (pieces(shown), pieces(real));
        shown.len() == real.len()
            && (0..shown.len()).all(|at| {
                let integer = at >= 2 && shown[at - 2..at] == ["integer", ") "];
                self.agree_on(shown[at], real[at], integer)
            })
    }

    fn agree_on(&mut self, shown: &str, real: &str, integer: bool) -> bool {
        if let Some(shown) = token(shown) {
            let Some(real) = token(real) else { return false };
            *self.tokens.entry(shown).or_insert(real) == real
        } else if is_uuid(shown) {
            is_uuid(real) && self.names.entry(shown.to_owned()).or_insert_with(|| real.to_owned()) == real
        } else if integer && is_number(shown) && shown.len() >= 4 {
            is_number(real)
        } else {
            shown == real
        }
    }

    /// Whether the real tokens have the same order as the tokens of the session.
    fn keep_order(&self) -> bool {
        self.tokens.values().is_sorted_by(|one, next| one < next)
    }
}

/// The words of a text and the separators between the words, alternating.
fn pieces(text: &str) -> Vec<&str> {
    let in_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.as_bytes()
        .chunk_by(|one, next| in_word(*one) == in_word(*next))
        .map(|piece| str::from_utf8(piece).expect("ASCII between words of ASCII"))
        .collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn token(text: &str) -> Option<u64> {
    if is_number(text) && text.len() >= 13 { text.parse().ok() } else { None }
}

fn is_uuid(text: &str) -> bool {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && text.split('-').all(digits)
}

/// The anchors that GitHub makes from a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !in_block) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
            anchors.insert(heading.chars().filter(kept).collect());
        }
    }
    anchors
}
