-- The Redis functions of the notice service. All keys of an account are in the account's partition.
--
-- Notices: a hash with a notice for each name, and these fields:
--
--   top        position of the newest act of all
--   floor      newest version among the notices that were removed for newer ones
--   days       the days that have notices of follows, with spaces between them
--   seen:<k>   position up to which notices of a kind are marked as seen
--   gone       whether the account is deleted; then there is nothing else
--
-- A name is the letter of the kind, then the subject: `l<post>` (likes), `s<post>` (reposts), `f<day>`
-- and `u<day>` (follows, mutual ones), `c<post>.<comment>` (comment), `r<post>.<comment>` (reply),
-- `m<post>` and `m<post>.<comment>` (mention).
--
-- Notice: a head of 16 bytes, then its acts, of 33 bytes each. It has the newest 20 acts, and the newest
-- 20 that were undone.
--
--   head  8  newest version among the acts that were removed for newer ones
--         8  how many acts were removed that count
--   act   8  its id: that of the account, repost, comment or post
--         8  the account
--         8  version of the last change
--         8  position, which is larger than that of each act before
--         1  whether it counts: 0 after it was undone

local NOTICES_MAX, MENTIONS_MAX, ACTS_MAX = 800, 800, 20
local HEAD, ACT = 16, 33
local LIFETIME, GONE_LIFETIME = 90 * 86400, 8 * 86400

-- A day in the units of versions, which are stamps.
local DAY = 86400000 * 4096

local function day(version)
  return math.floor(version / DAY)
end

local function decode(packed)
  local floor, earlier = struct.unpack('<I8I8', packed)
  local notice = { floor = floor, earlier = earlier, acts = {} }
  for at = HEAD + 1, #packed, ACT do
    local id, actor, version, position, counts = struct.unpack('<I8I8I8I8B', packed, at)
    local act = { id = id, actor = actor, version = version, position = position }
    act.counts = counts == 1
    notice.acts[#notice.acts + 1] = act
  end
  return notice
end

local function encode(notice)
  local parts = { struct.pack('<I8I8', notice.floor, notice.earlier) }
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

-- Returns whether a change of an act was applied before. The version of an end may be that of the
-- beginning.
local function is_known(act, version, counts)
  return act and (version < act.version or (version == act.version and act.counts == counts))
end

-- Removes acts beyond the newest: of those that count by their positions, of the others by their
-- versions.
local function limit(notice)
  local oldest, counts = {}, { [true] = 0, [false] = 0 }
  for i, act in ipairs(notice.acts) do
    local kept = oldest[act.counts] and notice.acts[oldest[act.counts]]
    local by = act.counts and 'position' or 'version'
    if not kept or act[by] < kept[by] then
      oldest[act.counts] = i
    end
    counts[act.counts] = counts[act.counts] + 1
  end
  for kind, count in pairs(counts) do
    if count > ACTS_MAX then
      local act = table.remove(notice.acts, oldest[kind])
      notice.floor = math.max(notice.floor, act.version)
      notice.earlier = notice.earlier + (kind and 1 or 0)
      return
    end
  end
end

-- Reads the state of an account; nothing if it is deleted.
local function open(keys)
  local state = redis.call('HMGET', keys[1], 'top', 'floor', 'days', 'gone')
  if state[4] then
    return nil
  end
  local account = { keys = keys, top = tonumber(state[1] or 0), floor = tonumber(state[2] or 0) }
  account.days, account.read, account.changed = {}, {}, {}
  for number in string.gmatch(state[3] or '', '%d+') do
    account.days[#account.days + 1] = number
  end
  return account
end

-- Returns the notice with a name, if there is one.
local function notice_of(account, name)
  if account.read[name] == nil then
    local packed = redis.call('HGET', account.keys[1], name)
    account.read[name] = packed and decode(packed)
  end
  return account.read[name]
end

-- Gives an act the next position.
local function to_top(account, act)
  account.top = math.max(account.top + 1, now_ms() * 1000)
  act.position = account.top
end

-- Records an act. It is new unless the account had undone it on the same day.
local function begin(account, name, id, actor, version)
  local notice = notice_of(account, name)
  if not notice then
    -- Older than notices that are not there any more.
    if version <= account.floor then
      return
    end
    notice = { floor = 0, earlier = 0, acts = {} }
    account.read[name] = notice
  end
  local act = act_of(notice, id)
  if version <= notice.floor or is_known(act, version, true) then
    return
  end
  if not act then
    act = { id = id }
    notice.acts[#notice.acts + 1] = act
    to_top(account, act)
  elseif not act.counts and day(act.version) ~= day(version) then
    to_top(account, act)
  end
  act.actor, act.version, act.counts = actor, version, true
  limit(notice)
  account.changed[name] = true
end

-- Records that an act was undone. There may have been none: services also report such ends.
local function undo(account, name, id, version)
  local notice = notice_of(account, name)
  local act = notice and act_of(notice, id)
  if not notice or version <= notice.floor or is_known(act, version, false) then
    return
  end
  if not act then
    if notice.earlier == 0 then
      return
    end
    -- One of the acts that were removed.
    notice.earlier = notice.earlier - 1
    act = { id = id, actor = id, position = 0 }
    notice.acts[#notice.acts + 1] = act
  end
  act.version, act.counts = version, false
  limit(notice)
  account.changed[name] = true
end

-- Records a follow. It takes the place of an earlier one, which may be of another day or kind.
local function follow(account, name, actor, version)
  for _, number in ipairs(account.days) do
    for _, kind in ipairs({ 'f', 'u' }) do
      local earlier = notice_of(account, kind .. number)
      local act = earlier and act_of(earlier, actor)
      if act and version <= act.version then
        return
      elseif act and number == string.sub(name, 2) then
        return begin(account, kind .. number, actor, actor, version)
      elseif act then
        act.counts = false
        account.changed[kind .. number] = true
      end
    end
  end
  begin(account, name, actor, actor, version)
  if account.changed[name] then
    local number = string.sub(name, 2)
    account.has_new_follow = true
    for _, known in ipairs(account.days) do
      if known == number then
        return
      end
    end
    account.days[#account.days + 1] = number
  end
end

-- Records the end of a follow.
local function unfollow(account, actor, version)
  for _, number in ipairs(account.days) do
    for _, kind in ipairs({ 'f', 'u' }) do
      local notice = notice_of(account, kind .. number)
      if notice and act_of(notice, actor) then
        undo(account, kind .. number, actor, version)
      end
    end
  end
end

-- Removes notices beyond the newest.
local function trim(account)
  local notices, order = account.keys[1], account.keys[2]
  while redis.call('ZCARD', order) > NOTICES_MAX do
    local name = redis.call('ZRANGE', order, 0, 0)[1]
    local notice = notice_of(account, name) or { acts = {} }
    for _, act in ipairs(notice.acts) do
      account.floor = math.max(account.floor, act.version)
    end
    redis.call('ZREM', order, name)
    redis.call('HDEL', notices, name)
  end
end

-- Writes what has changed.
local function close(account)
  local notices, order = account.keys[1], account.keys[2]
  for name in pairs(account.changed) do
    local notice, newest = account.read[name], nil
    for _, act in ipairs(notice.acts) do
      if act.counts then
        newest = math.max(newest or 0, act.position)
      end
    end
    redis.call('HSET', notices, name, encode(notice))
    -- Acts that were removed and come back have the position 0.
    if newest and newest > 0 then
      redis.call('ZADD', order, integer(newest), name)
    end
  end
  trim(account)
  redis.call('HSET', notices, 'top', integer(account.top), 'floor', integer(account.floor))
  if account.has_new_follow then
    local is_there = function(name)
      return redis.call('HEXISTS', notices, name) == 1
    end
    local days = {}
    for _, number in ipairs(account.days) do
      if is_there('f' .. number) or is_there('u' .. number) then
        days[#days + 1] = number
      end
    end
    redis.call('HSET', notices, 'days', table.concat(days, ' '))
  end
  for _, key in ipairs(account.keys) do
    redis.call('EXPIRE', key, LIFETIME)
  end
end

-- Applies changes to the notices of an account, in their order. Changes that were applied before have
-- no effect.
--
-- KEYS: notices, order, mentions. ARGV: for each change, what to do, the name of the notice, the id of
-- the act, its account and its version.
-- Needs: hget, hmget, hset, hdel, hexists, zadd, zrem, zcard, zrange, zremrangebyrank, expire, time.
local function apply(keys, args)
  local account = open(keys)
  if not account then
    return
  end
  local mentions = 0
  for at = 1, #args, 5 do
    local what, name = args[at], args[at + 1]
    local id, actor, version = tonumber(args[at + 2]), tonumber(args[at + 3]), tonumber(args[at + 4])
    if what == 'begin' then
      begin(account, name, id, actor, version)
    elseif what == 'undo' then
      undo(account, name, id, version)
    elseif what == 'follow' then
      follow(account, name, actor, version)
    elseif what == 'unfollow' then
      unfollow(account, actor, version)
    elseif what == 'mention' then
      begin(account, name, id, actor, version)
      mentions = mentions + redis.call('ZADD', keys[3], args[at + 2], args[at + 2])
    end
  end
  if mentions > 0 then
    redis.call('ZREMRANGEBYRANK', keys[3], 0, -MENTIONS_MAX - 1)
  end
  if mentions > 0 or next(account.changed) then
    close(account)
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
-- Returns the newest position of all, then the name, position and encoded notice of each.
-- Needs: hget, hmget, zrange.
local function list(keys, args)
  local kinds, below, above, count = args[1], args[2], args[3], tonumber(args[4])
  local seen = {}
  if args[5] == '1' then
    for kind in string.gmatch(kinds, '.') do
      seen[kind] = tonumber(redis.call('HGET', keys[1], 'seen:' .. kind) or 0)
    end
  end
  local found = { tonumber(redis.call('HGET', keys[1], 'top') or 0) }
  while (#found - 1) / 3 < count do
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
      if string.find(kinds, kind, 1, true) and position > (seen[kind] or 0) then
        local packed = redis.call('HGET', keys[1], name)
        if packed and is_shown(packed) then
          found[#found + 1] = name
          found[#found + 1] = position
          found[#found + 1] = packed
          if (#found - 1) / 3 == count then
            break
          end
        end
      end
    end
  end
  return found
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
