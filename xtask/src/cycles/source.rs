//! What a module's text says of the modules that it uses.
//!
//! A scanner and not a parser: it knows comments, literals, `mod`, `use` and paths, which is what imports consist of.

use std::collections::{BTreeMap, BTreeSet};

/// Names from the crate's root, which is empty.
pub(super) type Module = Vec<String>;

/// The paths in a module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) imports: Vec<Import>,
    /// Others than imports.
    pub(super) paths: Vec<Vec<String>>,
    /// Names of modules below that are for tests.
    pub(super) tests: BTreeSet<String>,
}

/// One path of a `use`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// What it is called in the module; `None`: a glob.
    pub(super) name: Option<String>,
}

/// Adds the module of a file, and those that are written out in it.
pub(super) fn read(text: &str, module: &Module, modules: &mut BTreeMap<Module, Source>) {
    let mut tokens = Tokens {
        tokens: tokens(text),
        at: 0,
    };
    modules.entry(module.clone()).or_default();
    // Modules that are open, and how many braces are open outside of them.
    let (mut open, mut braces) = (vec![(module.clone(), 0)], 0_usize);
    while let Some(token) = tokens.next() {
        let Some((module, _)) = open.last() else {
            return;
        };
        let source = modules.entry(module.clone()).or_default();
        match token {
            "#" if tokens.take(&["[", "cfg", "(", "test", ")", "]"]) => {
                source.tests.extend(tokens.skip_item());
            }
            "pub" if tokens.peek(0) == Some("(") => tokens.skip_group(),
            "use" => tokens.use_tree(&[], &mut source.imports),
            "mod" if tokens.peek(1) == Some("{") => {
                let inner = [
                    module.as_slice(),
                    &[tokens.next().unwrap_or_default().to_owned()],
                ];
                open.push((inner.concat(), braces));
            }
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                if open.len() > 1 && open.last().is_some_and(|(_, outside)| *outside == braces) {
                    open.pop();
                }
            }
            // Of another crate, or the rest of a path behind type arguments.
            "::" => {
                let first = tokens.next().unwrap_or_default();
                tokens.path(first);
            }
            first if is_word(first) && tokens.peek(0) == Some("::") => {
                source.paths.push(tokens.path(first));
            }
            _ => {}
        }
    }
}

struct Tokens<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.at += 1;
        self.tokens.get(self.at - 1).copied()
    }

    fn peek(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).copied()
    }

    /// Passes these tokens, if they are the next ones.
    fn take(&mut self, expected: &[&str]) -> bool {
        let is_next = self.tokens[self.at.min(self.tokens.len())..].starts_with(expected);
        self.at += if is_next { expected.len() } else { 0 };
        is_next
    }

    /// Passes what is in parentheses, brackets or braces.
    fn skip_group(&mut self) {
        let mut open = 0_usize;
        while let Some(token) = self.next() {
            match token {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return;
            }
        }
    }

    /// Passes an item, a statement or a field. Returns its name, if it is a module of another file.
    fn skip_item(&mut self) -> Option<String> {
        let mut name = None;
        while let Some(token) = self.peek(0) {
            match token {
                ";" | "," => {
                    self.at += 1;
                    return name;
                }
                "{" => {
                    self.skip_group();
                    return None;
                }
                "}" => return None,
                "(" | "[" => self.skip_group(),
                "mod" => {
                    name = self.peek(1).map(str::to_owned);
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        name
    }

    /// The path that begins with `first`.
    fn path(&mut self, first: &str) -> Vec<String> {
        let mut path = vec![first.to_owned()];
        while self.peek(0) == Some("::") && self.peek(1).is_some_and(is_word) {
            path.extend(self.peek(1).map(str::to_owned));
            self.at += 2;
        }
        path
    }

    /// What a `use` imports, or a part of it in braces.
    fn use_tree(&mut self, prefix: &[String], imports: &mut Vec<Import>) {
        let mut path = prefix.to_vec();
        let mut name = path.last().cloned();
        loop {
            match self.next() {
                Some("{") => {
                    while !matches!(self.peek(0), Some("}") | None) {
                        self.use_tree(&path, imports);
                        self.take(&[","]);
                    }
                    self.at += 1;
                    return;
                }
                Some("*") => name = None,
                Some("as") => name = self.next().map(str::to_owned),
                Some("self") if !path.is_empty() => {}
                // A crate's name is next.
                Some("::") => {
                    path.push(String::new());
                    continue;
                }
                Some(token) => {
                    path.push(token.to_owned());
                    name = Some(token.to_owned());
                }
                None => return,
            }
            if !self.take(&["::"]) && self.peek(0) != Some("as") {
                imports.push(Import { path, name });
                return;
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(is_word_character)
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Words, `::` and single other characters, without comments and literals of text.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let without = comment(rest)
            .or_else(|| string(rest))
            .or_else(|| quote(rest));
        let length = without.unwrap_or_else(|| {
            let length = match first {
                _ if rest.starts_with("::") => 2,
                _ if is_word_character(first) => {
                    rest.find(|c| !is_word_character(c)).unwrap_or(rest.len())
                }
                _ => first.len_utf8(),
            };
            if !first.is_whitespace() {
                tokens.push(&rest[..length]);
            }
            length
        });
        rest = &rest[length..];
    }
    tokens
}

/// The length of a comment.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let mut open = 0_usize;
    for at in 0..text.len() {
        match text.get(at..at + 2) {
            Some("/*") => open += 1,
            Some("*/") if open == 1 => return Some(at + 2),
            Some("*/") => open = open.saturating_sub(1),
            _ => {}
        }
    }
    Some(text.len())
}

/// The length of a string literal.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c| !matches!(c, 'b' | 'c' | 'r'))?;
    let is_raw = text[..prefix].ends_with('r');
    let hashes = text[prefix..].bytes().take_while(|b| *b == b'#').count();
    let body = text[prefix + hashes..].strip_prefix('"')?;
    let before = prefix + hashes + 1;
    if is_raw {
        let end = format!("\"{}", "#".repeat(hashes));
        let length = body.find(&end).map(|at| before + at + end.len());
        return Some(length.unwrap_or(text.len()));
    }
    if hashes > 0 {
        return None;
    }
    let mut is_escaped = false;
    for (at, character) in body.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(before + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// The length of a character, or the quote of a lifetime.
fn quote(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let mut characters = rest.char_indices();
    let is_escaped = characters.next().is_some_and(|(_, first)| first == '\\');
    let (after, second) = characters.next()?;
    if is_escaped {
        let after = after + second.len_utf8();
        return Some(
            1 + rest[after..]
                .find('\'')
                .map_or(rest.len(), |at| after + at + 1),
        );
    }
    Some(if second == '\'' { after + 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_root(text: &str) -> BTreeMap<Module, Source> {
        let mut modules = BTreeMap::new();
        read(text, &Vec::new(), &mut modules);
        modules
    }

    fn words(path: &str) -> Vec<String> {
        path.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn each_path_of_a_use_is_an_import() {
        let text = "pub(in crate::x) use crate::{a::{self, A as B, c::*}, d}; use ::e::E;";
        let source = &read_root(text)[&Vec::new()];
        let imports = source.imports.iter();
        let found: Vec<(String, Option<&str>)> = imports
            .map(|import| (import.path.join("::"), import.name.as_deref()))
            .collect();
        let expected = [
            ("crate::a", Some("a")),
            ("crate::a::A", Some("B")),
            ("crate::a::c", None),
            ("crate::d", Some("d")),
            ("::e::E", Some("E")),
        ];
        assert_eq!(found, expected.map(|(path, name)| (path.to_owned(), name)));
        assert!(source.paths.is_empty(), "{source:?}");
    }

    #[test]
    fn paths_in_comments_literals_and_tests_are_none() {
        let text = r####"
            //! See crate::no.
            fn f<'a>(x: &'a super::A) -> char { crate::b::C::<u8>::new(); /* crate::no /* */ */ '\'' }
            const S: [&str; 2] = ["crate::no \" ", r#"crate::no" "#];
            #[cfg(test)]
            fn only_here(x: [u8; 2]) { crate::no() }
            #[cfg(test)]
            mod tests;
            mod inner { fn g() { super::h::i() } }
            fn j() { k::l() }
        "####;
        let modules = read_root(text);
        let source = &modules[&Vec::new()];
        assert_eq!(source.paths, ["super::A", "crate::b::C", "k::l"].map(words));
        assert!(source.tests.contains("tests"));
        assert_eq!(modules[&words("inner")].paths, [words("super::h::i")]);
    }
}
