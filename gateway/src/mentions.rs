//! Mentions in texts, and the accounts that they point to.
//!
//! A text names accounts; whose a name is, is looked up when the text is read. A name may have gone to
//! another account since, so it means an account only if that is older than the text: names cannot be
//! changed, so whoever had the name when the text was written had it from their registration on, and
//! who took it later is younger. Ids say when they were made, so nothing has to be kept for it. (An id
//! is issued some milliseconds before its name is claimed: that only matters where names of deleted
//! accounts are free at once.)

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use microblog_domain::{BATCH_MAX, Stamp};
use microblog_proto::{
    post::{Comment, Entity, Mention, Post, entity::Target},
    user,
};
use tonic::Status;

use crate::{refusal, rpc::Gateway};

/// Something with a text whose mentions and hashtags are known.
pub(crate) trait Text {
    /// Returns the texts of it, itself and what it contains, each as its entities.
    fn texts(&self) -> impl Iterator<Item = &[Entity]>;
    /// Returns the same to be changed, each with the id of what it is the text of.
    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])>;
}

impl Text for Post {
    fn texts(&self) -> impl Iterator<Item = &[Entity]> {
        let root = self.root.iter().map(|root| root.entities.as_slice());
        std::iter::once(self.entities.as_slice()).chain(root)
    }

    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])> {
        let root = self.root.iter_mut().map(|root| (root.id, root.entities.as_mut_slice()));
        std::iter::once((self.id, self.entities.as_mut_slice())).chain(root)
    }
}

impl Text for Comment {
    fn texts(&self) -> impl Iterator<Item = &[Entity]> {
        std::iter::once(self.entities.as_slice())
    }

    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])> {
        std::iter::once((self.id, self.entities.as_mut_slice()))
    }
}

/// Whose the names are that texts mention.
#[derive(Debug, Default)]
pub(crate) struct Mentioned(HashMap<String, u64>);

impl Mentioned {
    /// Writes into the mentions of something which accounts they point to.
    pub(crate) fn fill(&self, text: &mut impl Text) {
        for (text_id, entities) in text.texts_mut() {
            for entity in entities {
                if let Some(Target::Mention(mention)) = &mut entity.target {
                    let user_id = self.0.get(unique(mention).as_ref()).copied();
                    let meant = user_id.filter(|&id| is_no_younger(id, text_id));
                    mention.user_id = meant.unwrap_or_default();
                }
            }
        }
    }
}

/// Returns whether an account was there when a text was written, to the millisecond. The clocks of
/// two partitions may differ by as much as those of two machines, so an account of the moment before
/// may count as younger: its mention points to nobody, rather than to somebody else.
fn is_no_younger(user_id: u64, text_id: u64) -> bool {
    let made = |id: u64| Stamp::new(id).map(Stamp::time);
    made(user_id).zip(made(text_id)).is_some_and(|(account, text)| account <= text)
}

impl Gateway {
    /// Returns whose the names are that texts mention, of as many as `names` returns. One call:
    /// user.BatchResolveNames; none where nobody is mentioned.
    pub(crate) async fn mentioned<T: Text>(&self, texts: &[T]) -> Result<Mentioned, Status> {
        let names = names(texts);
        if names.is_empty() {
            return Ok(Mentioned::default());
        }
        let request = user::BatchResolveNamesRequest { names };
        let response = self.peers.user().batch_resolve_names(request).await;
        let users = response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().users;
        Ok(Mentioned(users.into_iter().map(|named| (named.name, named.user_id)).collect()))
    }

    /// Returns what a call has just written, with whom it mentions. One call, as
    /// [`Gateway::mentioned`]; where that fails, whatever the reason, the answer leaves open what
    /// happened: the text is written, and the caller may repeat the call.
    pub(crate) async fn with_mentions<T: Text>(&self, mut text: T) -> Result<T, Status> {
        let mentioned = self.mentioned(std::slice::from_ref(&text)).await;
        mentioned.map_err(refusal::after_write)?.fill(&mut text);
        Ok(text)
    }
}

/// Returns the different names that texts mention, as many as one call takes, among the first so
/// many mentions of each text. First come those that are first in their texts, then the second
/// ones, so that no text with hundreds of mentions keeps those of its neighbours from being looked
/// up.
fn names<T: Text>(texts: &[T]) -> Vec<String> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let mut texts: Vec<_> = texts
        .iter()
        .flat_map(Text::texts)
        .map(|entities| entities.iter().filter_map(mention).take(BATCH_MAX))
        .collect();
    while names.len() < BATCH_MAX && !texts.is_empty() {
        texts.retain_mut(|mentions| {
            let Some(name) = mentions.next().map(unique) else { return false };
            if names.len() < BATCH_MAX && !seen.contains(&name) {
                names.push(name.to_string());
                seen.insert(name);
            }
            true
        });
    }
    names
}

fn mention(entity: &Entity) -> Option<&Mention> {
    match &entity.target {
        Some(Target::Mention(mention)) => Some(mention),
        Some(Target::Hashtag(_)) | None => None,
    }
}

/// Returns the name in the one spelling in which it is asked for.
fn unique(mention: &Mention) -> Cow<'_, str> {
    if mention.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(mention.name.to_ascii_lowercase());
    }
    Cow::Borrowed(&mention.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Entity {
        let mention = Mention { name: name.to_owned(), user_id: 0 };
        Entity { target: Some(Target::Mention(mention)), ..Entity::default() }
    }

    fn comment(names: &[&str]) -> Comment {
        Comment { entities: names.iter().map(|name| of(name)).collect(), ..Comment::default() }
    }

    #[test]
    fn each_name_is_asked_for_once_in_whatever_case_it_is_written() {
        let texts = [comment(&["Ann", "bob", "ANN"]), comment(&["aNN", "cleo"])];
        assert_eq!(names(&texts), ["ann", "bob", "cleo"]);
    }

    #[test]
    fn a_text_full_of_mentions_leaves_room_for_those_of_others() {
        let many: Vec<String> = (0..600).map(|i| format!("n{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let names = names(&[comment(&many), comment(&["ann", "bob"])]);
        assert_eq!(names.len(), BATCH_MAX);
        assert_eq!(names[..4], ["n0", "ann", "n1", "bob"]);
    }

    #[test]
    fn what_is_repeated_takes_no_room_and_no_end_of_looking() {
        let repeated: Vec<&str> = [&["ann"; BATCH_MAX][..], &["bob"]].concat();
        assert_eq!(names(&[comment(&repeated), comment(&["cleo"])]), ["ann", "cleo"]);
    }

    #[test]
    fn mentions_are_filled_in_in_a_post_and_in_its_root() {
        let at = |ms: u64| ms << 12;
        let root = Post { id: at(5), entities: vec![of("BOB"), of("eve")], ..Post::default() };
        let (id, entities) = (at(7), vec![Entity::default(), of("Ann")]);
        let mut post = Post { id, entities, root: Some(Box::new(root)), ..Post::default() };
        Mentioned([("ann".to_owned(), 1), ("bob".to_owned(), 2)].into()).fill(&mut post);
        let ids = |entities: &[Entity]| {
            let id = |entity| mention(entity).map(|mention| mention.user_id);
            entities.iter().map(id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&post.entities), [None, Some(1)]);
        assert_eq!(ids(&post.root.unwrap().entities), [Some(2), Some(0)]);
    }

    #[test]
    fn a_mention_means_nobody_who_came_after_its_text() {
        let at = |ms: u64| (ms << 12) | (3 << 2);
        let meant = |account: u64, text: u64| {
            let mut comment = Comment { id: at(text), ..comment(&["ann"]) };
            // Of another partition, whose stamps of the same time are larger.
            let id = at(account) | (9 << 2);
            Mentioned([("ann".to_owned(), id)].into()).fill(&mut comment);
            mention(&comment.entities[0]).unwrap().user_id == id
        };
        assert!(meant(5, 6) && meant(5, 5));
        assert!(!meant(6, 5) && !meant(500, 5));
    }
}
