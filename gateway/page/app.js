// The page. The hash of the address selects the view: #/home, #/user/ada/followers, #/post/1.

import { CallError, call, keepWatching, requestId, setToken } from "./client.js";
import { fill, h } from "./elements.js";
import { operators } from "./operators.js";
// Not a file of this directory: gateway/src/page.rs makes it.
import { hasMetrics } from "./settings.js";
import { LANGUAGES, language, setLanguage, t, texts } from "./texts.js";

const header = document.querySelector("header");
const main = document.querySelector("main");
const status = document.querySelector("#status");

const VIEWS = new Map(Object.entries({
  home, friends, user, post, notices, login, register,
  ...(hasMetrics && { operators: () => operators(viewEnd.signal) }),
}));
const NEED_SESSION = ["home", "friends", "notices"];
const NEED_NONE = ["login", "register"];
const LISTS = { followers: "ViewFollowers", following: "ViewFollowing", mutuals: "ViewMutuals" };
const FOLLOWED = ["RELATION_STATE_FOLLOWING", "RELATION_STATE_MUTUAL"];
const SELF = "RELATION_STATE_SELF";
// With more new posts than this, the timeline is loaded again.
const FRESH_MAX = 100;
const STATUS_MS = 8_000;

// { token, user }, or null. In localStorage, so new tabs and a restarted browser keep the session.
// Scripts of the page can read it, as they can read sessionStorage: the content security policy
// admits no scripts but the page's own.
let session = JSON.parse(localStorage.getItem("session"));
// Aborted when the session ends, and when the view is left: they end the streams.
let sessionEnd = new AbortController();
let viewEnd = new AbortController();
// The number of unread notices, and how the view shows it.
let unread = 0;
let showUnread = () => {};
let fieldCount = 0;
let saying;

addEventListener("hashchange", () => route(true));
// Another tab has logged in or out.
addEventListener("storage", ({ key }) => key === "session" && location.reload());
beginSession();
route(false);

// Session

function beginSession() {
  sessionEnd.abort();
  sessionEnd = new AbortController();
  unread = 0;
  setToken(session?.token);
  // Also counts at the first message, which confirms the start: so it misses no notice.
  if (session) keepWatching("WatchNotices", "", sessionEnd.signal, countUnread).catch(report);
}

function setSession(value) {
  session = value;
  if (value) localStorage.setItem("session", JSON.stringify(value));
  else localStorage.removeItem("session");
  beginSession();
  route(true);
}

async function logOut() {
  // Without a connection, the session ends at least here.
  await call("Logout").catch(explain);
  if (session) setSession(null);
}

async function logIn(login, password) {
  const { token, user } = await call("Login", { login, password });
  setSession({ token, user });
}

// Returns the text of an error. If the session has ended, shows the view to log in.
function explain(error) {
  if (!(error instanceof CallError)) throw error;
  if (error.reason === "TOKEN_INVALID" && session) {
    setSession(null);
    say(t("TOKEN_INVALID"));
  }
  const key = [error.reason, error.code].find((one) => Object.hasOwn(texts, one));
  const text = key ? t(key) : error.message;
  return error.retryAfterS ? `${text} ${t("retryAfter", Math.ceil(error.retryAfterS))}` : text;
}

function report(error) {
  say(explain(error));
}

async function countUnread() {
  const answer = await call("CountUnread").catch(explain);
  unread = (answer.counts ?? []).reduce((sum, { count }) => sum + count, 0);
  showBadge();
  showUnread();
}

// Navigation

function route(isNavigation) {
  viewEnd.abort();
  viewEnd = new AbortController();
  showUnread = () => {};
  document.documentElement.lang = language;
  say("");
  const [name, ...rest] = location.hash.slice(2).split("/");
  if (session && NEED_NONE.includes(name)) return location.replace("#/home");
  const view = VIEWS.has(name) ? name : "home";
  showHeader();
  fill(main, VIEWS.get(!session && NEED_SESSION.includes(view) ? "login" : view)(...rest));
  const title = main.querySelector("h1");
  title.tabIndex = -1;
  document.title = `${title.textContent} · microblog`;
  if (isNavigation) {
    scrollTo(0, 0);
    title.focus();
  }
}

function showHeader() {
  const links = session
    ? { home: "#/home", friends: "#/friends", notices: "#/notices", myPage: userHash(session.user) }
    : { logIn: "#/login", register: "#/register" };
  if (hasMetrics) links.operators = "#/operators";
  const nav = Object.entries(links).map(([key, href]) =>
    h("a", { href, "aria-current": location.hash === href && "page" }, t(key),
      key === "notices" && h("span", { id: "unread" })));
  const goTo = (event) => {
    event.preventDefault();
    const name = document.querySelector("#go-to").value.trim().replace(/^@/, "");
    location.hash = userHash({ name });
  };
  const other = LANGUAGES.find((one) => one !== language);
  fill(header,
    h("button", { id: "skip", type: "button", onclick: () => main.querySelector("h1").focus() },
      t("skip")),
    h("nav", { "aria-label": t("navigation") }, nav),
    h("form", { role: "search", onsubmit: goTo },
      h("label", { for: "go-to", class: "hidden" }, t("accountName")),
      h("input", { id: "go-to", placeholder: "@ada", required: true, autocomplete: "off" }),
      h("button", {}, t("goTo"))),
    session && h("button", { type: "button", id: "log-out", onclick: logOut }, t("logOut")),
    h("button", { type: "button", id: "language", lang: other, onclick: () => speak(other) },
      texts.languageName[LANGUAGES.indexOf(other)]),
  );
  showBadge();
}

function showBadge() {
  const badge = document.querySelector("#unread");
  if (badge) fill(badge, unread > 0 && [unread, h("span", { class: "hidden" }, ` ${t("unread")}`)]);
}

function speak(other) {
  setLanguage(other);
  route(false);
  document.querySelector("#language").focus();
}

// Views: each returns its elements, and fills them when its calls return

function login() {
  const fields = [
    { name: "login", label: t("login"), autocomplete: "username", required: true },
    { name: "password", label: t("password"), type: "password", autocomplete: "current-password",
      required: true },
  ];
  return [
    h("h1", {}, t("logIn")),
    form(fields, t("logIn"), ({ login, password }) => logIn(login, password)),
    h("p", {}, t("noAccount"), " ", h("a", { href: "#/register" }, t("register"))),
  ];
}

function register() {
  const fields = [
    { name: "name", label: t("name"), hint: t("nameHint"), autocomplete: "username", required: true },
    { name: "email", label: t("email"), hint: t("emailHint"), autocomplete: "email", required: true },
    { name: "password", label: t("password"), hint: t("passwordHint"), type: "password",
      autocomplete: "new-password", required: true },
    { name: "displayName", label: t("displayName"), hint: t("displayNameHint"),
      autocomplete: "nickname" },
  ];
  const action = async (values, requestId) => {
    await call("Register", { ...values, requestId });
    await logIn(values.name, values.password);
  };
  return [
    h("h1", {}, t("register")),
    form(fields, t("register"), action),
    h("p", {}, t("haveAccount"), " ", h("a", { href: "#/login" }, t("logIn"))),
  ];
}

function home() {
  let fresh = [];
  const { signal } = viewEnd;
  const news = newsButton(() => {
    showFresh([]);
    timeline.focus();
  });
  const timeline = list("ViewHome", {}, "posts", postCard, ({ sinceToken }, isFirst) => {
    if (isFirst) keepWatching("WatchHome", sinceToken, signal, arrived).catch(report);
  });
  function arrived({ posts = [] }) {
    // A stream that resumes may repeat posts.
    const waiting = new Set(fresh.map(({ post }) => post.id));
    const added = posts.filter((one) => !timeline.has(one) && !waiting.has(one.post.id));
    // One more than the maximum stands for all further ones.
    fresh = [...added, ...fresh].slice(0, FRESH_MAX + 1);
    news.show(fresh.length, fresh.length > FRESH_MAX ? `${FRESH_MAX}+` : fresh.length);
  }
  function showFresh(own) {
    // Some of them are missing here.
    if (fresh.length > FRESH_MAX) return route(true);
    timeline.prepend([...own, ...fresh]);
    fresh = [];
    news.show(0);
  }
  const fields = [{ name: "text", label: t("newPost"), hint: t("textHint"), rows: 3, required: true }];
  const publish = form(fields, t("publish"), async ({ text }, requestId) => {
    const { post } = await call("Publish", { text, requestId });
    // The stream has the viewer's own posts as well; `list` shows each once.
    showFresh([{ post, author: { user: session.user, relation: SELF } }]);
    say(t("published"));
  });
  return [h("h1", {}, t("home")), publish, news.element, timeline.element];
}

function friends() {
  return [h("h1", {}, t("friends")), list("ViewFriends", {}, "posts", postCard).element];
}

function user(name, which = "timeline") {
  const profile = h("div", { class: "card" });
  const tabs = ["timeline", ...Object.keys(LISTS)].map((key) => {
    const href = key === "timeline" ? userHash({ name }) : `${userHash({ name })}/${key}`;
    return h("a", { href, "aria-current": key === which && "page" }, t(key));
  });
  call("ViewUser", { user: { name } }).then(({ user, posts = 0, counts, relation }) => {
    fill(profile,
      h("p", {}, h("strong", {}, user.displayName || user.name), ` @${user.name}`),
      user.bio && h("p", { class: "text" }, user.bio),
      user.location && h("p", { class: "note" }, user.location),
      relationControl(user, relation.state));
    const { followers = 0, following = 0, mutuals = 0 } = counts;
    [posts, followers, following, mutuals].forEach((count, index) => tabs[index].append(` ${count}`));
  }).catch((cause) => fill(content, errorPlace(explain(cause))));
  const request = { user: { name } };
  const shown = Object.hasOwn(LISTS, which)
    ? list(LISTS[which], request, "users", userCard)
    : list("ViewUserTimeline", request, "posts", postCard);
  const nav = h("nav", { "aria-label": t("lists") }, tabs);
  const content = h("div", {}, profile, nav, shown.element);
  return [h("h1", {}, `@${name}`), content];
}

function post(postId) {
  const shown = h("div");
  const order = "COMMENT_ORDER_NEWEST_FIRST";
  const comments = list("ViewComments", { postId, order }, "comments", commentCard);
  const fields = [{ name: "text", label: t("newComment"), rows: 2, required: true }];
  const write = form(fields, t("comment"), async ({ text }, requestId) => {
    const { comment } = await call("Comment", { postId, text, requestId });
    comments.prepend([{ comment, author: { user: session.user, relation: SELF } }]);
    say(t("commented"));
  });
  call("ViewPost", { postId }).then(({ post }) => shown.append(postCard(post)))
    .catch((cause) => fill(content, errorPlace(explain(cause))));
  const title = h("h2", {}, t("comments", ""));
  const content = h("div", {}, shown, title, session && write, comments.element);
  return [h("h1", {}, t("post")), content];
}

function notices() {
  const news = newsButton(() => route(true));
  showUnread = () => news.show(unread);
  const shown = list("ViewNotices", {}, "notices", noticeCard, ({ seenToken }) => {
    if (seenToken) call("MarkSeen", { token: seenToken }).then(countUnread).catch(report);
  });
  return [h("h1", {}, t("notices")), news.element, shown.element];
}

// Cards: an entry of a list each

function postCard({ post, author, rootState, root }) {
  const error = errorPlace();
  const card = h("article", { class: "card", "data-post": post.id },
    byline(author.user, post.createdAt, postHash(post.id)),
    post.text && h("p", { class: "text" }, richText(post)),
    post.rootId && rootQuote(post, rootState, root));
  const replies = h("a", { href: postHash(post.id) }, t("comments", post.comments ?? 0));
  const actions = h("p", { class: "actions" }, likeButton(post, error), replies);
  if (session) actions.append(repostButton(post, card));
  if (author.relation === SELF) {
    const remove = () => call("DeletePost", { postId: post.id });
    actions.append(deleteButton(card, error, remove));
  }
  card.append(actions, error);
  return card;
}

function rootQuote(post, state, root) {
  if (state === "ROOT_STATE_DELETED") return h("blockquote", {}, t("rootDeleted"));
  if (state === "ROOT_STATE_HIDDEN") return h("blockquote", {}, t("rootHidden"));
  const href = postHash(post.rootId);
  if (!root) return h("blockquote", {}, h("a", { href }, t("rootOmitted")));
  const line = byline(root.author.user, root.post.createdAt, href);
  return h("blockquote", {}, line, h("p", { class: "text" }, richText(root.post)));
}

function likeButton({ id: postId, liked = false, likes = 0 }, error) {
  if (!session) return h("span", {}, t("like", likes));
  const like = button("", error, async () => {
    // Unlike returns no number.
    if (liked) await call("Unlike", { postId });
    likes = liked ? likes - 1 : ((await call("Like", { postId })).likes ?? 0);
    liked = !liked;
    show();
  });
  const show = () => {
    like.textContent = t("like", likes);
    like.ariaPressed = liked;
  };
  show();
  return like;
}

function repostButton({ id: postId, reposts = 0 }, card) {
  const fields = [{ name: "text", label: t("repostText"), rows: 2 }];
  const write = form(fields, t("repost", ""), async ({ text }, requestId) => {
    await call("Repost", { postId, text, requestId });
    reposts = Number(reposts) + 1;
    toggle.textContent = t("repost", reposts);
    say(t("reposted"));
    show(false);
  });
  const show = (isShown) => {
    toggle.ariaExpanded = isShown;
    if (isShown) card.append(write);
    else write.remove();
    (isShown ? write.elements.text : toggle).focus();
  };
  const toggle = h("button", { type: "button", "aria-expanded": "false",
    onclick: () => show(!write.isConnected) }, t("repost", reposts));
  return toggle;
}

function deleteButton(card, error, remove) {
  return button(t("delete"), error, async () => {
    if (!confirm(t("deleteReally"))) return;
    await remove();
    const rest = h("p", { class: "card note", tabindex: -1 }, t("deleted"));
    card.replaceWith(rest);
    rest.focus();
  });
}

function commentCard({ comment, author }) {
  const error = errorPlace();
  const card = h("article", { class: "card", "data-comment": comment.id },
    byline(author.user, comment.createdAt), h("p", { class: "text" }, richText(comment)));
  if (author.relation === SELF) {
    const remove = () => call("DeleteComment", { postId: comment.postId, commentId: comment.id });
    card.append(h("p", { class: "actions" }, deleteButton(card, error, remove)), error);
  }
  return card;
}

function userCard({ user, relation }) {
  return h("article", { class: "card entry" }, h("p", {}, userLink(user)), relationControl(user, relation));
}

// The relation between the account and the viewer, with a button that changes it.
function relationControl(user, relation) {
  if (!session) return "";
  const error = errorPlace();
  const state = h("span", { class: "state" });
  const change = button("", error, async () => {
    const method = FOLLOWED.includes(relation) ? "Unfollow" : "Follow";
    relation = (await call(method, { user: { id: user.id } })).relation;
    show();
    say(`@${user.name}: ${t(relation)}`);
  });
  const show = () => {
    const isFollower = relation === "RELATION_STATE_FOLLOWER";
    const key = FOLLOWED.includes(relation) ? "unfollow" : isFollower ? "followBack" : "follow";
    state.textContent = t(relation);
    state.dataset.relation = relation;
    change.textContent = t(key);
    change.ariaLabel = `${t(key)} @${user.name}`;
    change.hidden = relation === SELF;
  };
  show();
  return h("p", { class: "relation" }, state, change, error);
}

function noticeCard({ kind, actors, count, post, comment, since, unread }) {
  const names = actors.flatMap(({ user }, index) => [index ? t("comma") : "", userLink(user)]);
  // The count of a notice of reposts is one of reposts, not of accounts.
  if (kind === "NOTICE_KIND_REPOST") names.push(count > 1 ? t("times", count) : "");
  else if (count > actors.length) names.push(t("others", count - actors.length));
  // The names stand where the text has its argument.
  const [before, after] = t(kind, "\n").split("\n");
  const text = comment?.comment.text ?? post?.post.text;
  return h("article", { class: "card", "data-kind": kind },
    h("p", {}, unread && h("strong", { class: "new" }, t("isNew")), before, names, after),
    post && h("p", { class: "excerpt" }, h("a", { href: postHash(post.post.id) }, text || t("post"))),
    h("p", { class: "note" }, time(since)));
}

// Parts of cards

function byline(user, createdAt, href) {
  const moment = href ? h("a", { href }, time(createdAt)) : time(createdAt);
  return h("p", { class: "byline" }, userLink(user), h("span", { class: "note" }, moment));
}

function userLink(user) {
  const name = user.displayName ? [h("strong", {}, user.displayName), ` @${user.name}`] : `@${user.name}`;
  return h("a", { href: userHash(user) }, name);
}

// A text with links. Its entities count code points, as `Array.from` does.
function richText({ text = "", entities = [] }) {
  const characters = Array.from(text);
  const slice = (start, end) => characters.slice(start, end).join("");
  let written = 0;
  const nodes = entities.flatMap(({ start = 0, end, mention, hashtag }) => {
    const before = slice(written, start);
    const part = slice(start, end);
    written = end;
    // Without an id, no account has this name.
    if (mention?.userId) return [before, h("a", { href: userHash(mention) }, part)];
    return [before, hashtag ? h("span", { class: "tag" }, part) : part];
  });
  return [...nodes, slice(written)];
}

function time(timestamp) {
  const options = { dateStyle: "medium", timeStyle: "short" };
  return h("time", { datetime: timestamp }, new Date(timestamp).toLocaleString(language, options));
}

function userHash({ name }) {
  return `#/user/${name}`;
}

function postHash(id) {
  return `#/post/${id}`;
}

// Controls

// A list of the entries `key` of a method's responses. Its next page loads when the end comes into view,
// or by the button. A post is shown once.
function list(method, request, key, card, loaded = () => {}) {
  const items = h("ul", { class: "items" });
  const error = errorPlace();
  const more = button(t("more"), error, next);
  const end = h("p", { class: "note", hidden: true });
  const observer = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && more.click());
  const postIds = new Set();
  let pageToken = "";

  async function next() {
    // After an error, only the button loads.
    observer.unobserve(more);
    more.textContent = t("retry");
    const answer = await call(method, { ...request, pageToken });
    items.append(...cards(answer[key] ?? []));
    loaded(answer, !pageToken);
    pageToken = answer.nextPageToken ?? "";
    more.textContent = t("more");
    more.hidden = !pageToken;
    end.hidden = !!pageToken;
    end.textContent = t(items.childElementCount ? "end" : "nothing");
    // Reports at once if the button is still in view, so a short page loads the next one.
    if (pageToken) setTimeout(() => observer.observe(more));
  }
  function has({ post }) {
    return postIds.has(post?.id);
  }
  function prepend(entries) {
    items.prepend(...cards(entries));
    end.textContent = t("end");
  }
  function cards(entries) {
    return entries.flatMap((entry) => {
      if (has(entry)) return [];
      if (entry.post?.id) postIds.add(entry.post.id);
      return [h("li", {}, card(entry))];
    });
  }
  more.click();
  const focus = () => items.querySelector("a")?.focus();
  return { element: h("div", {}, items, error, more, end), has, prepend, focus };
}

// The button "5 new". Its place exists before it, so that screen readers announce it.
function newsButton(action) {
  const element = h("div", { class: "news", "aria-live": "polite" });
  const show = (count, text = count) =>
    fill(element, count > 0 && h("button", { type: "button", onclick: action }, t("fresh", text)));
  return { element, show };
}

// A form. After an error, the same input is sent with the same `request_id`: a repeat of a call that
// had succeeded has no second effect.
function form(fields, text, action) {
  let id = requestId();
  const error = errorPlace();
  const submit = h("button", {}, text);
  const rows = fields.map(formField);
  const element = h("form", { class: "card", oninput: () => { id = requestId(); } }, rows, submit, error);
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    run(submit, error, async () => {
      const inputs = [...element.elements].filter(({ name }) => name);
      inputs.forEach((input) => { input.ariaInvalid = null; });
      try {
        await action(Object.fromEntries(inputs.map(({ name, value }) => [name, value])), id);
      } catch (cause) {
        const invalid = cause.violations?.map(({ field }) => field.replace("_n", "N")) ?? [];
        const marked = inputs.filter(({ name }) => invalid.includes(name));
        marked.forEach((input) => { input.ariaInvalid = true; });
        marked[0]?.focus();
        throw cause;
      }
      element.reset();
      id = requestId();
    });
  });
  return element;
}

function formField({ label, hint, rows, ...attributes }) {
  fieldCount += 1;
  const [id, hintId] = [`field-${fieldCount}`, `hint-${fieldCount}`];
  const described = hint && { "aria-describedby": hintId };
  return h("div", { class: "field" },
    h("label", { for: id }, label),
    h(rows ? "textarea" : "input", { id, rows, ...described, ...attributes }),
    hint && h("p", { id: hintId, class: "note" }, hint));
}

function button(text, error, action) {
  const element = h("button", { type: "button" }, text);
  element.addEventListener("click", () => run(element, error, action));
  return element;
}

// Runs an action, not twice at once, and shows its error. Unlike `disabled`, `aria-disabled` keeps the
// focus on the control.
async function run(control, error, action) {
  if (control.ariaDisabled) return;
  control.ariaDisabled = true;
  error.textContent = "";
  try {
    await action();
  } catch (cause) {
    error.textContent = explain(cause);
  } finally {
    control.ariaDisabled = null;
  }
}

function errorPlace(text = "") {
  return h("span", { class: "error", role: "alert" }, text);
}

function say(text) {
  status.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => { status.textContent = ""; }, STATUS_MS);
}
