-- The Redis functions of the notice service. All keys of an account are in the account's partition.
--
-- Notices: a hash with a notice for each name, and these fields:
--
--   top          position of the newest act of all
--   read:<feed>  how far a change feed is applied: its generation and the number of the change
--   seen:<k>     position up to which notices of a kind are marked as seen
--   gone         whether the account is deleted; then there is nothing else
--
-- A name is the letter of the kind, then the subject: `l<post>` (likes), `s<post>` (reposts), `f<day>`
-- and `u<day>` (follows, mutual ones), `c<post>.<comment>` (comment), `r<post>.<comment>` (reply),
-- `m<post>` and `m<post>.<comment>` (mention).
--
-- Notice: a head of 9 bytes, then its acts, of 33 bytes each. It has the newest 20 acts, and the newest
-- 20 of these that were undone.
--
--   head  1  format, 1; a notice of another format is replaced
--         8  how many acts were removed for newer ones
--   act   8  its id: that of the account, repost, comment or post
--         8  the account
--         8  version of the last change
--         8  position, which is larger than that of each act before
--         1  whether it counts: 0 after it was undone

local NOTICES_MAX, MENTIONS_MAX, ACTS_MAX = 800, 800, 20
local FORMAT, HEAD, ACT = 1, 9, 33
local LIFETIME, GONE_LIFETIME = 90 * 86400, 8 * 86400

-- A day in the units of versions, which are stamps.
local DAY = 86400000 * 4096

local function day(version)
  return math.floor(version / DAY)
end

-- Returns whether an encoded notice can be decoded.
local function is_valid(packed)
  return #packed >= HEAD and string.byte(packed) == FORMAT and (#packed - HEAD) % ACT == 0
end

local function decode(packed)
  local notice = { earlier = struct.unpack('<I8', packed, 2), acts = {} }
  for at = HEAD + 1, #packed, ACT do
    local id, actor, version, position, counts = struct.unpack('<I8I8I8I8B', packed, at)
    local act = { id = id, actor = actor, version = version, position = position }
    act.counts = counts == 1
    notice.acts[#notice.acts + 1] = act
  end
  return notice
end

local function encode(notice)
  local parts = { struct.pack('<BI8', FORMAT, notice.earlier) }
  for _, act in ipairs(notice.acts) do
    local counts = act.counts and 1 or 0
    parts[#parts + 1] =
      struct.pack('<I8I8I8I8B', act.id, act.actor, act.version, act.position, counts)
  end
  return table.concat(parts)
end

-- Returns the act with an id.
local function act_of(notice, id)
  for _, act in ipairs(notice.acts) do
    if act.id == id then
      return act
    end
  end
end

-- Removes the oldest act beyond the newest, of those that count or of the others.
local function limit(notice, counts)
  local oldest, count = nil, 0
  for i, act in ipairs(notice.acts) do
    if act.counts == counts then
      count = count + 1
      if not oldest or act.position < notice.acts[oldest].position then
        oldest = i
      end
    end
  end
  if count > ACTS_MAX then
    table.remove(notice.acts, oldest)
    notice.earlier = notice.earlier + (counts and 1 or 0)
  end
end

-- Reads the state of an account; nothing if it is deleted.
local function open(keys, feed)
  local state = redis.call('HMGET', keys[1], 'gone', 'top', 'read:' .. feed)
  if state[1] then
    return nil
  end
  local generation, number = string.match(state[3] or '', '^(%d+) (%d+)$')
  return {
    keys = keys,
    top = tonumber(state[2] or 0),
    generation = tonumber(generation or 0),
    number = tonumber(number or 0),
    notices = {},
    changed = {},
  }
end

-- Returns the notice with a name, if there is one.
local function notice_of(account, name)
  if account.notices[name] == nil then
    local packed = redis.call('HGET', account.keys[1], name)
    account.notices[name] = packed and is_valid(packed) and decode(packed)
  end
  return account.notices[name]
end

-- Records an act. It gets the next position, unless the account had undone it on the same day.
local function begin(account, name, id, actor, version)
  local notice = notice_of(account, name)
  if not notice then
    notice = { earlier = 0, acts = {} }
    account.notices[name] = notice
  end
  local act = act_of(notice, id)
  if not act then
    act = { id = id }
    notice.acts[#notice.acts + 1] = act
  end
  if not act.version or (not act.counts and day(act.version) ~= day(version)) then
    account.top = math.max(account.top + 1, now_ms() * 1000)
    act.position = account.top
  end
  act.actor, act.version, act.counts = actor, version, true
  limit(notice, true)
  account.changed[name] = true
end

-- Records that an act was undone. It may not be there: it was removed, or there was none.
local function undo(account, name, id, version)
  local notice = notice_of(account, name)
  local act = notice and act_of(notice, id)
  if act then
    act.version, act.counts = version, false
    limit(notice, false)
    account.changed[name] = true
  end
end

-- Records a follow: as one of the kind that it already has on this day.
local function follow(account, name, actor, version)
  local other = (string.sub(name, 1, 1) == 'f' and 'u' or 'f') .. string.sub(name, 2)
  local earlier = notice_of(account, other)
  local is_known = earlier and act_of(earlier, actor)
  begin(account, is_known and other or name, actor, actor, version)
end

-- Removes notices beyond the newest.
local function trim(account)
  local notices, order = account.keys[1], account.keys[2]
  local excess = redis.call('ZCARD', order) - NOTICES_MAX
  if excess > 0 then
    local names = redis.call('ZRANGE', order, 0, excess - 1)
    call_with('ZREM', order, names)
    call_with('HDEL', notices, names)
  end
end

-- Writes what has changed.
local function close(account)
  local notices, order = account.keys[1], account.keys[2]
  for name in pairs(account.changed) do
    local notice = account.notices[name]
    local newest, newest_counted = 0, nil
    for _, act in ipairs(notice.acts) do
      newest = math.max(newest, act.position)
      if act.counts then
        newest_counted = math.max(newest_counted or 0, act.position)
      end
    end
    redis.call('HSET', notices, name, encode(notice))
    redis.call('ZADD', order, integer(newest_counted or newest), name)
  end
  redis.call('HSET', notices, 'top', integer(account.top))
  trim(account)
end

-- Applies changes of a feed to the notices of an account, in their order. Those that were applied before
-- are left out. In another generation, the feed was read anew, and its numbers mean nothing.
--
-- KEYS: notices, order, mentions. ARGV: feed, generation; for each change, its number, what to do, the
-- name of the notice, the id of the act, its account and its version.
-- Needs: hget, hmget, hset, hdel, zadd, zrem, zcard, zrange, zremrangebyrank, expire, time.
local function apply(keys, args)
  local feed, generation = args[1], args[2]
  local account = open(keys, feed)
  -- A process that still follows the feed as it was before has nothing new.
  if not account or account.generation > tonumber(generation) then
    return
  end
  local applied = account.generation == tonumber(generation) and account.number or 0
  local mentions = 0
  for at = 3, #args, 6 do
    local number, what, name = tonumber(args[at]), args[at + 1], args[at + 2]
    local id, actor, version = tonumber(args[at + 3]), tonumber(args[at + 4]), tonumber(args[at + 5])
    if number > applied then
      applied = number
      if what == 'undo' then
        undo(account, name, id, version)
      elseif what == 'follow' then
        follow(account, name, actor, version)
      else
        begin(account, name, id, actor, version)
      end
      if what == 'mention' then
        mentions = mentions + redis.call('ZADD', keys[3], args[at + 3], args[at + 3])
      end
    end
  end
  if mentions > 0 then
    redis.call('ZREMRANGEBYRANK', keys[3], 0, -MENTIONS_MAX - 1)
  end
  if next(account.changed) then
    close(account)
    -- Ends without notices are not worth a field.
    redis.call('HSET', keys[1], 'read:' .. feed, generation .. ' ' .. integer(applied))
    for _, key in ipairs(keys) do
      redis.call('EXPIRE', key, LIFETIME)
    end
  end
end

-- Returns whether an encoded notice has an act that counts.
local function is_shown(packed)
  for at = HEAD + ACT, #packed, ACT do
    if string.byte(packed, at) == 1 then
      return true
    end
  end
  return false
end

-- Lists notices, newest first.
--
-- KEYS: notices, order. ARGV: the letters of the kinds; the position below which the list starts
-- (`+inf` at its start), the one above which it ends; the most notices; 1 for unseen ones only.
-- Returns the newest position of all; up to which notices of each kind are marked as seen; then the
-- name, position and encoded notice of each.
-- Needs: hget, hmget, zrange.
local function list(keys, args)
  local kinds, below, above, count = args[1], args[2], args[3], tonumber(args[4])
  local fields, seen, positions = { 'top' }, {}, {}
  for kind in string.gmatch(kinds, '.') do
    fields[#fields + 1] = 'seen:' .. kind
  end
  local state, found = call_with('HMGET', keys[1], fields), {}
  for i = 2, #fields do
    positions[i - 1] = tonumber(state[i] or 0)
    seen[string.sub(kinds, i - 1, i - 1)] = args[5] == '1' and positions[i - 1] or 0
  end
  if args[5] == '1' then
    above = integer(math.max(tonumber(above), math.min(unpack(positions))))
  end
  while #found / 3 < count do
    local part = redis.call(
      'ZRANGE', keys[2], '(' .. below, '(' .. above, 'BYSCORE', 'REV', 'LIMIT', 0, 50, 'WITHSCORES'
    )
    if #part == 0 then
      break
    end
    for at = 1, #part, 2 do
      local name, position = part[at], tonumber(part[at + 1])
      local kind = string.sub(name, 1, 1)
      below = part[at + 1]
      if string.find(kinds, kind, 1, true) and position > seen[kind] then
        local packed = redis.call('HGET', keys[1], name)
        if packed and is_valid(packed) and is_shown(packed) then
          found[#found + 1] = name
          found[#found + 1] = position
          found[#found + 1] = packed
          if #found / 3 == count then
            break
          end
        end
      end
    end
  end
  return { tonumber(state[1] or 0), positions, found }
end

-- Marks notices as seen.
--
-- KEYS: notices. ARGV: the letters of their kinds, the position of the newest one.
-- Needs: hget, hset.
local function mark_seen(keys, args)
  local top = tonumber(redis.call('HGET', keys[1], 'top') or 0)
  -- No token is ahead of it, unless Redis has lost data.
  local position = math.min(tonumber(args[2]), top)
  for kind in string.gmatch(args[1], '.') do
    local field = 'seen:' .. kind
    if tonumber(redis.call('HGET', keys[1], field) or 0) < position then
      redis.call('HSET', keys[1], field, integer(position))
    end
  end
end

-- Deletes what a deleted account has. Changes that come later have no effect.
--
-- KEYS: notices, order, mentions. Needs: unlink, hset, expire.
local function erase(keys)
  redis.call('UNLINK', keys[1], keys[2], keys[3])
  redis.call('HSET', keys[1], 'gone', '1')
  redis.call('EXPIRE', keys[1], GONE_LIFETIME)
end

register('note_apply', apply)
register('note_list', list, 'no-writes')
register('note_mark_seen', mark_seen, 'allow-oom')
register('note_erase', erase, 'allow-oom')
