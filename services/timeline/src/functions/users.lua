-- User timelines and fan-out states.

-- The head of a new user timeline, known down to an id above all posts: 2^53 - 1.
local NEW_HEAD = '\0\0\0\0\0\0\0\255' .. '\255\255\255\255\255\255\31\0'

-- The head of a deleted account's user timeline, which says that there are no other posts.
local GONE_HEAD = '\0\0\0\0\0\0\0\255' .. '\0\0\0\0\0\0\0\0'
-- How long it stays, in seconds: longer than the relation service takes to end the follows of the
-- account, and the post service to deliver its last posts.
local GONE_LIFETIME = 8 * 86400

-- Inserts a record in the order of posts: nearly always at the end. A full timeline takes none that is
-- older than all: those that it had in between are gone.
local function insert(user, timeline, record)
  local post, at = post_at(record, 1), #timeline
  if at >= USER_HEAD + USER_MAX * USER_RECORD and post < post_at(timeline, USER_HEAD + 1) then
    return
  end
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
  redis.call('SET', user, string.sub(timeline, 1, USER_HEAD) .. records, 'KEEPTTL')
end

-- Publishes a post into the author's user timeline and home timeline.
--
-- KEYS: user timeline, home timeline. ARGV: user record, home record.
-- Returns whether it is new, and the fan-out state.
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
  push_one(home, args[2], post_at(args[2], 1))
  return { is_new and 1 or 0, timeline and string.byte(timeline) or ON_WRITE }
end

-- Adds the posts of the post service to a user timeline. Posts that were delivered meanwhile stay.
--
-- KEYS: user timeline. ARGV: the post down to which there are no others (0: no others at all),
-- user records of them, oldest first.
local function complete(keys, args)
  local timeline = redis.call('GET', keys[1]) or NEW_HEAD
  local down_to = math.min(struct.unpack('<I8', timeline, 9), tonumber(args[1]))
  local records = merge(string.sub(timeline, USER_HEAD + 1), args[2], USER_RECORD)
  if #records > (USER_MAX + USER_SLACK) * USER_RECORD then
    records = string.sub(records, -USER_MAX * USER_RECORD)
  end
  local head = string.sub(timeline, 1, 8) .. struct.pack('<I8', down_to)
  redis.call('SET', keys[1], head .. records, 'KEEPTTL')
end

-- Sets the fan-out state if it is as expected (compare-and-set).
--
-- KEYS: user timeline. ARGV: expected state, new state.
-- Returns the previous state; ON_WRITE for an author without posts.
local function switch_fanout(keys, args)
  local state = string.byte(redis.call('GETRANGE', keys[1], 0, 0)) or ON_WRITE
  if state == tonumber(args[1]) and redis.call('EXISTS', keys[1]) == 1 then
    redis.call('SETRANGE', keys[1], 0, string.char(tonumber(args[2])))
    if tonumber(args[2]) == ON_WRITE then
      redis.call('SETRANGE', keys[1], 1, struct.pack('<I4', 0))
    end
  end
  return state
end

-- Checks whether a switch to fan-out on read must start, or restart after a timeout. If so, records
-- its start.
--
-- KEYS: user timeline. ARGV: timeout of the first step and of the whole switch, in seconds.
-- Returns whether it must.
local function fanout_switch_due(keys, args)
  local head = redis.call('GETRANGE', keys[1], 0, USER_HEAD - 1)
  local state = string.byte(head)
  if not state or state == ON_READ then
    return 0
  end
  local now, last = now_seconds(), struct.unpack('<I4', head, 2)
  local timeout = tonumber(state == ON_WRITE and args[1] or args[2])
  if last <= now and now - last < timeout then
    return 0
  end
  redis.call('SETRANGE', keys[1], 1, struct.pack('<I4', now))
  return 1
end

-- Deletes the timelines of a deleted account. An empty user timeline stays for a time. Without it,
-- the next read for a follower would fetch the posts again, and store them for ever. What a late
-- read or delivery adds expires with it.
--
-- KEYS: user timeline, home timeline, pulls.
local function empty_timelines(keys)
  redis.call('UNLINK', keys[1], keys[2], keys[3])
  redis.call('SET', keys[1], GONE_HEAD, 'EX', GONE_LIFETIME)
end

register('tl_publish', publish)
register('tl_complete', complete)
register('tl_forget', empty_timelines, 'allow-oom')
register('tl_switch_fanout', switch_fanout, 'allow-oom')
register('tl_fanout_switch_due', fanout_switch_due, 'allow-oom')
