// The texts of the page: each in English and Chinese, with {0} for its arguments.

export const LANGUAGES = ["en", "zh"];

const preferred = localStorage.getItem("language") ?? navigator.language.slice(0, 2);
// The page's language.
export let language = LANGUAGES.includes(preferred) ? preferred : LANGUAGES[0];

export function setLanguage(value) {
  language = value;
  localStorage.setItem("language", language);
}

// Returns a text in the page's language. Names of enum values may be unknown, if the gateway is newer.
export function t(key, argument = "") {
  return texts[key]?.[LANGUAGES.indexOf(language)].replace("{0}", argument) ?? key;
}

export const texts = {
  languageName: ["English", "中文"],
  skip: ["Skip to content", "跳到内容"],
  navigation: ["Main", "主导航"],
  lists: ["Lists of the account", "账号的列表"],

  home: ["Home", "首页"],
  friends: ["Friends", "好友"],
  notices: ["Notices", "通知"],
  unread: ["unread", "条未读"],
  myPage: ["My page", "我的主页"],
  accountName: ["Name of an account", "账号名"],
  goTo: ["Go", "前往"],

  logIn: ["Log in", "登录"],
  logOut: ["Log out", "退出"],
  register: ["Register", "注册"],
  login: ["Name or e-mail address", "账号名或邮箱"],
  password: ["Password", "密码"],
  name: ["Name", "账号名"],
  email: ["E-mail address", "邮箱"],
  displayName: ["Display name (optional)", "昵称（可选）"],
  nameHint: ["1 to 30 of A-Z, a-z, 0-9 and underscore.", "1 至 30 个字符：A-Z、a-z、0-9 和下划线。"],
  passwordHint: ["8 to 128 characters.", "8 至 128 个字符。"],
  displayNameHint: ["Up to 50 characters.", "最多 50 个字符。"],
  emailHint: ["Such as ann@example.org. Nobody else sees it.", "例如 ann@example.org。其他人看不到。"],
  noAccount: ["No account yet?", "还没有账号？"],
  haveAccount: ["Registered already?", "已有账号？"],

  newPost: ["New post", "新帖子"],
  textHint: ["1 to 2,000 characters. @name mentions, #topic tags.", "1 至 2000 个字符。@账号名 提及，#话题 加标签。"],
  publish: ["Publish", "发布"],
  published: ["Published.", "已发布。"],
  post: ["Post", "帖子"],
  like: ["Like {0}", "赞 {0}"],
  comments: ["Comments {0}", "评论 {0}"],
  repost: ["Repost {0}", "转发 {0}"],
  repostText: ["Your text (optional)", "转发语（可选）"],
  reposted: ["Reposted.", "已转发。"],
  newComment: ["Your comment", "你的评论"],
  comment: ["Comment", "评论"],
  commented: ["The comment is published.", "评论已发布。"],
  delete: ["Delete", "删除"],
  deleteReally: ["Delete this?", "确定删除吗？"],
  deleted: ["Deleted.", "已删除。"],
  rootDeleted: ["The original post is deleted.", "原帖已删除。"],
  rootHidden: ["The original post is hidden.", "原帖不可见。"],
  rootOmitted: ["See the original post", "查看原帖"],

  fresh: ["{0} new", "{0} 条新内容"],
  more: ["More", "更多"],
  retry: ["Try again", "重试"],
  end: ["The end.", "到底了。"],
  nothing: ["Nothing here yet.", "这里还没有内容。"],

  timeline: ["Posts", "帖子"],
  followers: ["Followers", "粉丝"],
  following: ["Following", "关注"],
  mutuals: ["Mutuals", "互相关注"],
  follow: ["Follow", "关注"],
  followBack: ["Follow back", "回关"],
  unfollow: ["Unfollow", "取消关注"],
  RELATION_STATE_NONE: ["not followed", "未关注"],
  RELATION_STATE_FOLLOWING: ["you follow", "已关注"],
  RELATION_STATE_FOLLOWER: ["follows you", "关注了你"],
  RELATION_STATE_MUTUAL: ["mutual", "互相关注"],
  RELATION_STATE_SELF: ["you", "你自己"],

  NOTICE_KIND_FOLLOW: ["{0} followed you", "{0} 关注了你"],
  NOTICE_KIND_MUTUAL: ["{0} followed you back", "{0} 回关了你"],
  NOTICE_KIND_MENTION: ["{0} mentioned you", "{0} 提到了你"],
  NOTICE_KIND_COMMENT: ["{0} commented on your post", "{0} 评论了你的帖子"],
  NOTICE_KIND_REPLY: ["{0} replied to your comment", "{0} 回复了你的评论"],
  NOTICE_KIND_REPOST: ["{0} reposted your post", "{0} 转发了你的帖子"],
  NOTICE_KIND_LIKE: ["{0} liked your post", "{0} 赞了你的帖子"],
  comma: [", ", "、"],
  others: [" and {0} more", "和另外 {0} 人"],
  times: [" ({0} times)", "（{0} 次）"],
  isNew: ["new", "新"],

  operators: ["Live metrics", "实时指标"],
  operatorsNote: ["All services of this process. Plots: the last 5 minutes.", "本进程的所有服务。图中为最近 5 分钟。"],
  callRate: ["Requests", "请求"],
  errorRate: ["Server errors", "服务器错误"],
  deliveryRate: ["Fan-out deliveries", "扇出投递"],
  fanOutAge: ["Fan-out lag", "扇出延迟"],
  fanOutDepth: ["Fan-out queue", "扇出队列"],
  redisMemory: ["Redis memory", "Redis 内存"],
  undelivered: ["Undelivered posts", "未投递的微博"],
  peak: ["peak {0}", "峰值 {0}"],
  noData: ["no data", "暂无数据"],
  noRates: ["Rates need two scrapes.", "需要两次采样才能计算速率。"],
  noCalls: ["No calls to the gateway in the last minute.", "最近一分钟没有对网关的调用。"],
  methods: ["Calls to the gateway in the last minute, latency in ms", "最近一分钟对网关的调用，延迟单位为毫秒"],
  method: ["Method", "方法"],
  calls: ["Calls/s", "调用/秒"],
  errors: ["Errors/s", "错误/秒"],
  streamsNote: ["Streams count when they end, and have no latency.", "流在结束时计数，没有延迟数据。"],
  scrapeFailed: ["The metrics cannot be read: {0}. Trying again.", "无法读取指标：{0}。正在重试。"],

  // Errors, by reason or code. The page shows the message of all others.
  TOKEN_INVALID: ["The session has ended. Log in again.", "会话已结束，请重新登录。"],
  BAD_CREDENTIALS: ["The name, e-mail address or password is wrong.", "账号名、邮箱或密码错误。"],
  LOGIN_THROTTLED: ["Too many failed log-ins.", "登录失败次数过多。"],
  NAME_TAKEN: ["The name is taken.", "账号名已被使用。"],
  EMAIL_TAKEN: ["The e-mail address has an account already.", "该邮箱已注册。"],
  INVALID_FIELD: ["The input is not valid.", "输入无效。"],
  RATE_LIMITED: ["Too many calls.", "操作过于频繁。"],
  POSTS_THROTTLED: ["Too many posts.", "发帖过于频繁。"],
  COMMENTS_THROTTLED: ["Too many comments.", "评论过于频繁。"],
  USER_NOT_FOUND: ["There is no such account.", "账号不存在。"],
  POST_NOT_FOUND: ["There is no such post.", "帖子不存在。"],
  BLOCKED_BY_TARGET: ["The account blocks you.", "对方已将你拉黑。"],
  TARGET_BLOCKED: ["You block this account.", "你已将对方拉黑。"],
  FOLLOWING_LIMIT: ["You follow as many accounts as you may.", "关注数已达上限。"],
  unavailable: ["The service is unavailable. Try again.", "服务暂时不可用，请重试。"],
  retryAfter: ["Try again in {0} s.", "请在 {0} 秒后重试。"],
};
