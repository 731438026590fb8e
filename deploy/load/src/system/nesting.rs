//! Which commands clients send themselves, and which functions call. Redis counts both alike, each
//! with its time, which a function's contains again; only MONITOR tells them apart.

use std::collections::BTreeMap;

use crate::info::Executed;

/// What is sent to find all this out, which is none of the system's: left out.
const OWN: [&str; 2] = ["info", "monitor"];

/// How often each command was heard from whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Nesting(BTreeMap<String, Heard>);

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    sent: u64,
    nested: u64,
}

impl Nesting {
    /// Counts what MONITOR told.
    #[cfg(test)]
    pub(super) fn heard<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut nesting = Self::default();
        lines.for_each(|line| nesting.hear(line));
        nesting
    }

    /// Counts one line of MONITOR: `1700000000.000001 [0 127.0.0.1:5001] "GET" "key"`, with `lua` in
    /// place of the address where a function called it.
    pub(super) fn hear(&mut self, line: &str) {
        let Some((_, line)) = line.split_once('[') else { return };
        let Some((whose, line)) = line.split_once("] \"") else { return };
        let Some((name, _)) = line.split_once('"') else { return };
        let heard = self.0.entry(name.to_lowercase()).or_default();
        if whose.ends_with(" lua") { heard.nested += 1 } else { heard.sent += 1 }
    }

    /// Returns how much of what Redis carried out clients sent: of each command the share that was
    /// heard from them. All of a command that was not heard.
    pub(super) fn sent(&self, by_name: &BTreeMap<String, Executed>) -> Executed {
        let of_system = by_name.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        of_system.fold(Executed::default(), |sum, (name, executed)| {
            let (sent, all) = self.share(name);
            let part = |of: u64| u64::try_from(u128::from(of) * sent / all).unwrap_or(of);
            Executed { calls: sum.calls + part(executed.calls), us: sum.us + part(executed.us) }
        })
    }

    /// Returns how many calls were sent, and of how many. Redis counts each kind of a command such
    /// as `xgroup|create` apart, while MONITOR tells the first word by itself.
    fn share(&self, name: &str) -> (u128, u128) {
        let first = name.split('|').next().unwrap_or(name);
        let Heard { sent, nested } = self.0.get(first).copied().unwrap_or_default();
        if sent + nested == 0 { (1, 1) } else { (sent.into(), (sent + nested).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_functions_called_is_left_out_in_proportion() {
        let sent = "1700000000.000001 [0 127.0.0.1:5001] ";
        let nested = "1700000000.000002 [0 lua] ";
        let nesting = Nesting::heard(
            [
                format!("{sent}\"FCALL\" \"follow_1a\" \"1\" \"rel:[0 lua] \\\"x\\\"\""),
                format!("{nested}\"ZADD\" \"key\" \"1\" \"2\""),
                format!("{nested}\"get\" \"key\""),
                format!("{nested}\"GET\" \"key\""),
                format!("{nested}\"GET\" \"key\""),
                format!("{sent}\"GET\" \"key\""),
                "OK".to_owned(),
            ]
            .iter()
            .map(String::as_str),
        );
        let by_name = [
            ("fcall", 10, 1000),
            ("zadd", 10, 100),
            ("get", 40, 80),
            ("function|list", 2, 6),
            ("info", 3, 900),
        ];
        let by_name = by_name.map(|(name, calls, us)| (name.to_owned(), Executed { calls, us }));
        let sent = nesting.sent(&BTreeMap::from(by_name));
        assert_eq!(sent, Executed { calls: 10 + 10 + 2, us: 1000 + 20 + 6 });
    }
}
