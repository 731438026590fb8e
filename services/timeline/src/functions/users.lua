-- User timelines: what an author posts, and how it reaches followers.

-- The head of a new one.
local NEW_HEAD = '\0\0\0\0\0\0\224\255\0\0\0\0\0\0\0\0'

-- Returns the post's id at the beginning of a record.
local function post_at(timeline, at)
  return (struct.unpack('<I8', timeline, at))
end

-- Puts a record into an author's timeline, in the order of posts: nearly always at the end.
local function insert(user, timeline, record)
  local post, at = post_at(record, 1), #timeline
  while at > USER_HEAD and post_at(timeline, at - USER_RECORD + 1) > post do
    at = at - USER_RECORD
  end
  if at == #timeline and #timeline < USER_HEAD + (USER_MAX + USER_SLACK) * USER_RECORD then
    redis.call('APPEND', user, record)
    return
  end
  timeline = string.sub(timeline, 1, at) .. record .. string.sub(timeline, at + 1)
  local records = string.sub(timeline, USER_HEAD + 1)
  if #records > (USER_MAX + USER_SLACK) * USER_RECORD then
    records = string.sub(records, -USER_MAX * USER_RECORD)
  end
  redis.call('SET', user, string.sub(timeline, 1, USER_HEAD) .. records)
end

-- Takes a post into its author's timelines.
--
-- KEYS: user timeline, home timeline. ARGV: the post's record for either.
-- Returns: whether it is new, the author's state.
local function publish(keys, args)
  local user, home = keys[1], keys[2]
  local timeline = redis.call('GET', user)
  local is_new = not timeline
    or not has(timeline, USER_HEAD, USER_RECORD, string.sub(args[1], 1, 8))
  if not timeline then
    redis.call('SET', user, NEW_HEAD .. args[1])
  elseif is_new then
    insert(user, timeline, args[1])
  end
  push_one(home, args[2], not is_new)
  return { is_new and 1 or 0, timeline and string.byte(timeline) or PUSHED }
end

-- Changes how an author's posts reach followers, unless it is not as expected.
--
-- KEYS: user timeline. ARGV: the state expected, the new one.
-- Returns the state before; PUSHED for an author without posts.
local function cross(keys, args)
  local state = string.byte(redis.call('GETRANGE', keys[1], 0, 0)) or PUSHED
  if state == tonumber(args[1]) and redis.call('EXISTS', keys[1]) == 1 then
    redis.call('SETRANGE', keys[1], 0, string.char(tonumber(args[2])))
    if tonumber(args[2]) == PUSHED then
      redis.call('SETRANGE', keys[1], 8, struct.pack('<I4', 0))
    end
  end
  return state
end

-- Says whether it is time to begin a crossing of an author, or to begin it again since the last one
-- did not come to an end; and that it begins now.
--
-- KEYS: user timeline. ARGV: how many seconds one has for its first step, and for all of it.
-- Returns whether it is.
local function cross_due(keys, args)
  local head = redis.call('GETRANGE', keys[1], 0, USER_HEAD - 1)
  local state = string.byte(head)
  if not state or state == PULLED then
    return 0
  end
  local now, last = now_seconds(), struct.unpack('<I4', head, 9)
  local patience = tonumber(state == PUSHED and args[1] or args[2])
  if last <= now and now - last < patience then
    return 0
  end
  redis.call('SETRANGE', keys[1], 8, struct.pack('<I4', now))
  return 1
end

register('tl_publish', publish)
register('tl_cross', cross, 'allow-oom')
register('tl_cross_due', cross_due, 'allow-oom')
