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
-- Notice: a head of 9 bytes, then its acts, of 33 bytes each, in any order. It has the newest 20 acts,
-- and the newest 20 of these that were undone. The functions change it without decoding all acts, which
-- would take most of their time.
--
--   head  1  format, 1; a notice of another format is replaced
--         8  how many acts were removed for newer ones
--   act   8  its id: that of the account, repost, comment or post
--         8  the account
--         8  version of the last change
--         8  position, which is larger than that of each earlier act
--         1  whether it counts: 0 after it was undone

local NOTICES_MAX, MENTIONS_MAX, ACTS_MAX = 800, 800, 20
local FORMAT, HEAD, ACT = 1, 9, 33
-- Where fields of an act are.
local VERSION, POSITION = 16, 24
local LIFETIME, GONE_LIFETIME = 90 * 86400, 8 * 86400

-- A day in the units of versions, which are stamps.
local DAY = 86400000 * 4096

local function day(version)
  return math.floor(version / DAY)
end

-- Returns whether a notice has this format.
local function is_valid(packed)
  return #packed >= HEAD and string.byte(packed) == FORMAT and (#packed - HEAD) % ACT == 0
end

-- Returns where the act with an id begins.
local function act_at(notice, id)
  local bytes, at = struct.pack('<I8', id), HEAD
  repeat
    at = string.find(notice, bytes, at + 1, true)
  until not at or (at - HEAD - 1) % ACT == 0
  return at
end

-- Looks at the acts that count (1), or at the others (0). Returns the position of the newest, or 0; how
-- many there are; and where the oldest begins.
local function survey(notice, counts)
  local unpack_at = struct.unpack
  local newest, number, oldest, lowest = 0, 0, nil, math.huge
  for at = HEAD + 1, #notice, ACT do
    local position, counts_now = unpack_at('<I8B', notice, at + POSITION)
    if counts_now == counts then
      number = number + 1
      if position < lowest then
        oldest, lowest = at, position
      end
      if position > newest then
        newest = position
      end
    end
  end
  return newest, number, oldest
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
    -- The position of the newest act that counts, of each notice that has changed; 0 if not known.
    changed = {},
  }
end

-- Returns the notice with a name, if there is one.
local function notice_of(account, name)
  if account.notices[name] == nil then
    local notice = redis.call('HGET', account.keys[1], name)
    account.notices[name] = notice and is_valid(notice) and notice
  end
  return account.notices[name]
end

-- Writes an act, instead of the one that begins at `at`, if any. Removes the oldest act beyond the
-- newest, of those that count or of the others.
local function put(account, name, at, id, actor, version, position, counts)
  local notice = account.notices[name] or struct.pack('<BI8', FORMAT, 0)
  local act = struct.pack('<I8I8I8I8B', id, actor, version, position, counts)
  if at then
    notice = string.sub(notice, 1, at - 1) .. string.sub(notice, at + ACT)
  end
  local newest, number, oldest = survey(notice, counts)
  if number < ACTS_MAX then
    notice = notice .. act
  else
    local earlier = struct.unpack('<I8', notice, 2)
    -- The oldest act may be this one.
    if position < struct.unpack('<I8', notice, oldest + POSITION) then
      oldest, act = #notice + 1, ''
    end
    notice = struct.pack('<BI8', FORMAT, earlier + counts)
      .. string.sub(notice, HEAD + 1, oldest - 1) .. string.sub(notice, oldest + ACT) .. act
  end
  account.notices[name] = notice
  account.changed[name] = counts == 1 and math.max(newest, position) or 0
end

-- Records an act. It gets the next position, unless the account had undone it on the same day.
local function begin(account, name, id, actor, version)
  local notice = notice_of(account, name)
  local at, position = notice and act_at(notice, id), nil
  if at then
    local before, old_position, counts = struct.unpack('<I8I8B', notice, at + VERSION)
    position = (counts == 1 or day(before) == day(version)) and old_position
  end
  if not position then
    account.now = account.now or now_ms() * 1000
    account.top = math.max(account.top + 1, account.now)
    position = account.top
  end
  put(account, name, at, id, actor, version, position, 1)
end

-- Records that an act was undone. It may not be there: it was removed, or there was none.
local function undo(account, name, id, version)
  local notice = notice_of(account, name)
  local at = notice and act_at(notice, id)
  if at then
    local _, actor, _, position = struct.unpack('<I8I8I8I8', notice, at)
    put(account, name, at, id, actor, version, position, 0)
  end
end

-- Records a follow: as one of the kind that it already has on this day.
local function follow(account, name, actor, version)
  local other = (string.sub(name, 1, 1) == 'f' and 'u' or 'f') .. string.sub(name, 2)
  local earlier = notice_of(account, other)
  local is_known = earlier and act_at(earlier, actor)
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

-- Writes what has changed, and how far a feed is applied.
local function close(account, feed, applied)
  local notices, order = account.keys[1], account.keys[2]
  local fields = { 'top', integer(account.top), 'read:' .. feed, applied }
  for name, newest in pairs(account.changed) do
    local notice = account.notices[name]
    if newest == 0 then
      newest = survey(notice, 1)
    end
    if newest == 0 then
      newest = survey(notice, 0)
    end
    fields[#fields + 1], fields[#fields + 2] = name, notice
    redis.call('ZADD', order, integer(newest), name)
  end
  call_with('HSET', notices, fields)
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
    -- Ends without notices are not worth a field.
    close(account, feed, generation .. ' ' .. integer(applied))
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
