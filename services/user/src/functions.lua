-- The Redis functions of the user service. Each uses one partition. Each is idempotent: a cluster
-- client repeats a call whose response is lost. Functions are isolated but do not roll back, so all
-- checks come before the first write. `issue`, `integer` and `now_ms` are from the keyspace's
-- prelude; an `issuer` is the argument of `issue`.
--
-- A profile with a `card` is an account. Without one, `state` has its state, and `draft` a card that
-- is not public:
--   pending    a running registration
--   aborted    an aborted registration, whose claims are being released
--   deleted    a deleted account, with only the claims to release
-- Without a profile there is no account, and never will be, since ids are never issued twice.

-- A card is a protobuf message, defined in `store/card.rs`. It is changed field by field here, so
-- that fields of other versions stay as they are.

-- The tag of a card's name: field 1, length-delimited. A tag is the field's number * 8 + its wire
-- type.
local NAME = 10

-- Decodes the varint at a position. Returns its value, which is exact below 2^53, and the position
-- behind it; nothing if it is malformed.
local function varint(message, at)
  local value = 0
  for i = 0, 9 do
    local byte = string.byte(message, at + i)
    if not byte then
      return nil
    end
    value = value + byte % 128 * 128 ^ i
    if byte < 128 then
      return value, at + i + 1
    end
  end
end

-- Returns the position behind the field value at a position, and whether the value is empty;
-- nothing if it is malformed, or a group.
local function skip(message, wire_type, at)
  if wire_type == 0 then
    local _, past = varint(message, at)
    return past, false
  elseif wire_type == 1 then
    return at + 8, false
  elseif wire_type == 2 then
    local length, start = varint(message, at)
    return length and start + length, length == 0
  elseif wire_type == 5 then
    return at + 4, false
  end
end

-- Splits a protobuf message into its fields; nothing if it is malformed.
local function split(message)
  local fields, at = {}, 1
  while at <= #message do
    local tag, start = varint(message, at)
    if not tag or tag < 8 or tag >= 2 ^ 32 then
      return nil
    end
    local past, is_empty = skip(message, tag % 8, start)
    if not past or past > #message + 1 then
      return nil
    end
    fields[#fields + 1] =
      { tag = tag, is_empty = is_empty, encoded = string.sub(message, at, past - 1) }
    at = past
  end
  return fields
end

-- Decodes a card or draft. Returns its fields, and the encoded name; nothing if it is missing or
-- damaged.
local function decode(card)
  local fields = card and split(card)
  for _, field in ipairs(fields or {}) do
    if field.tag == NAME and not field.is_empty then
      return fields, field.encoded
    end
  end
end

-- Starts registrations in one partition.
-- KEYS: clock, registrations, prefix of profile keys. The profile keys themselves cannot be named,
--   since their ids are issued here. The prefix has the hash tag, so they are in the same slot.
-- ARGV: issuer, then for each: draft, email, password, request
-- Returns the ids.
local function create(keys, args)
  local ids = issue(keys[1], tonumber(args[1]), (#args - 1) / 4)
  for i, id in ipairs(ids) do
    local at = 1 + (i - 1) * 4
    redis.call('HSET', keys[3] .. id, 'state', 'pending', 'draft', args[at + 1],
      'email', args[at + 2], 'password', args[at + 3], 'request', args[at + 4])
    redis.call('ZADD', keys[2], id, id)
  end
  return ids
end

-- Claims names or addresses that are free.
-- KEYS: claims of one partition; ARGV: for each the id that claims it
-- Returns the owner of each.
local function claim(keys, args)
  local owners = {}
  for i, key in ipairs(keys) do
    local owner = redis.call('GET', key)
    if not owner then
      redis.call('SET', key, args[i])
      owner = args[i]
    end
    owners[i] = owner
  end
  return owners
end

-- Takes over stale claims by compare-and-set.
-- KEYS: claims of one partition; ARGV: for each the id of the owner, the id that takes it over
-- Returns the owner of each.
local function take_over(keys, args)
  local owners = {}
  for i, key in ipairs(keys) do
    local owner = redis.call('GET', key)
    if not owner or owner == args[2 * i - 1] then
      redis.call('SET', key, args[2 * i])
      owner = args[2 * i]
    end
    owners[i] = owner
  end
  return owners
end

-- Releases claims that the id still owns. A hold is the negated id, which expires.
-- KEYS: claims of one partition; ARGV: for each the id, duration of the hold in ms or 0
local function release(keys, args)
  for i, key in ipairs(keys) do
    local id, hold = args[2 * i - 1], args[2 * i]
    if redis.call('GET', key) == id then
      if hold == '0' then
        redis.call('DEL', key)
      else
        redis.call('SET', key, '-' .. id, 'PX', hold)
      end
    end
  end
  return #keys
end

-- Activates registrations that own both claims.
-- KEYS: registrations, accounts, profiles; ARGV: the profiles' ids
-- Returns for each 1, or 0 if it was aborted or its draft is damaged.
local function activate(keys, args)
  local done = {}
  for i, id in ipairs(args) do
    local profile = keys[2 + i]
    local found = redis.call('HMGET', profile, 'card', 'state', 'draft')
    local alive = found[1]
    if found[2] == 'pending' and decode(found[3]) then
      redis.call('HDEL', profile, 'state', 'draft')
      redis.call('HSET', profile, 'card', found[3])
      redis.call('ZREM', keys[1], id)
      redis.call('SADD', keys[2], id)
      alive = true
    end
    done[i] = alive and 1 or 0
  end
  return done
end

-- Aborts registrations, which then cannot be activated.
-- KEYS: registrations, profiles; ARGV: the profiles' ids
-- Returns for each its draft and email, whose claims must be released; nil if it is not aborted.
local function abort(keys, args)
  local claims = {}
  for i, id in ipairs(args) do
    local profile = keys[1 + i]
    local found = redis.call('HMGET', profile, 'state', 'draft', 'email')
    claims[i] = false
    if found[1] == 'pending' or found[1] == 'aborted' then
      redis.call('HSET', profile, 'state', 'aborted')
      claims[i] = { found[2], found[3] }
    else
      redis.call('ZREM', keys[1], id)
    end
  end
  return claims
end

-- Deletes aborted registrations.
-- KEYS: registrations, profiles; ARGV: the profiles' ids
local function drop(keys, args)
  for i, id in ipairs(args) do
    local profile = keys[1 + i]
    local state = redis.call('HGET', profile, 'state')
    if state == 'pending' or state == 'aborted' then
      redis.call('DEL', profile)
    end
    redis.call('ZREM', keys[1], id)
  end
  return #args
end

-- Counts a log-in as failed in advance unless it is throttled, and returns the owner of the claim.
-- KEYS: attempts, claim of the throttle key
-- ARGV: a text unique to this attempt, TTL in ms without a delay, TTL in ms, then the delays in ms
--   after 1, 2, 3 ... failures
-- Returns the remaining delay in ms, and the id of the owner or ''.
local function attempt(keys, args)
  local now = now_ms()
  local seen = redis.call('HMGET', keys[1], 'failures', 'until', 'last')
  local failures, until_ms = tonumber(seen[1] or '0'), tonumber(seen[2] or '0')
  local owner = redis.call('GET', keys[2]) or ''
  if seen[3] == args[1] then
    return { 0, owner }
  end
  local longest = tonumber(args[#args])
  -- After a clock was set back, the delay must not exceed the longest one.
  if now < until_ms and until_ms - now <= longest then
    return { until_ms - now, owner }
  end
  failures = failures + 1
  local wait = tonumber(args[3 + failures] or args[#args])
  redis.call('HSET', keys[1], 'failures', integer(failures), 'until', integer(now + wait),
    'last', args[1])
  redis.call('PEXPIRE', keys[1], wait == 0 and args[2] or args[3])
  return { 0, owner }
end

-- Opens a session if the checked password is still the account's.
-- KEYS: profile, sessions
-- ARGV: checked password hash, fingerprint, expiry and now in Unix ms, most sessions
-- Returns 1, or 0 if the account or the password has changed.
local function open_session(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'password')
  if not found[1] or found[2] ~= args[1] then
    return 0
  end
  redis.call('ZREMRANGEBYSCORE', keys[2], '-inf', args[4])
  if not redis.call('ZSCORE', keys[2], args[2]) then
    local surplus = redis.call('ZCARD', keys[2]) - tonumber(args[5])
    if surplus >= 0 then
      redis.call('ZREMRANGEBYRANK', keys[2], 0, surplus)
    end
    redis.call('ZADD', keys[2], args[3], args[2])
  end
  redis.call('PEXPIREAT', keys[2], redis.call('ZRANGE', keys[2], -1, -1, 'WITHSCORES')[2])
  return 1
end

-- Changes the password and ends all sessions.
-- KEYS: profile, sessions; ARGV: checked password hash, new hash
-- Returns 1, or 0 if the account or the password has changed.
local function change_password(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'password')
  if found[1] and found[2] == args[2] then
    return 1
  end
  if not found[1] or found[2] ~= args[1] then
    return 0
  end
  redis.call('HSET', keys[1], 'password', args[2])
  redis.call('DEL', keys[2])
  return 1
end

-- Changes fields of a profile and keeps all others.
-- KEYS: profile; ARGV: a card of the fields to change, without a name; an empty one is removed
-- Returns 1, 0 if there is no such account, or nil if its card is damaged.
local function update(keys, args)
  local card = redis.call('HGET', keys[1], 'card')
  if not card then
    return 0
  end
  local fields = decode(card)
  if not fields then
    return nil
  end
  local changed, encoded = {}, {}
  for _, change in ipairs(split(args[1])) do
    changed[change.tag] = true
    if not change.is_empty then
      encoded[#encoded + 1] = change.encoded
    end
  end
  for _, field in ipairs(fields) do
    if not changed[field.tag] then
      encoded[#encoded + 1] = field.encoded
    end
  end
  redis.call('HSET', keys[1], 'card', table.concat(encoded))
  return 1
end

-- Deletes an account, except for what is needed to release its claims.
-- KEYS: profile, sessions, accounts, deletions; ARGV: id, checked password hash
-- Returns 1, 0 if the account or the password has changed, or nil if the account is damaged.
local function delete(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'state', 'password', 'email')
  if found[2] == 'deleted' then
    return 1
  end
  if not found[1] or found[3] ~= args[2] then
    return 0
  end
  local _, name = decode(found[1])
  if not name or not found[4] then
    return nil
  end
  redis.call('DEL', keys[1], keys[2])
  redis.call('HSET', keys[1], 'state', 'deleted', 'draft', name, 'email', found[4])
  redis.call('SREM', keys[3], args[1])
  redis.call('ZADD', keys[4], args[1], args[1])
  return 1
end

-- Deletes the rest of a deleted account after the release of its claims.
-- KEYS: profile, deletions; ARGV: id
local function confirm_deletion(keys, args)
  if redis.call('HGET', keys[1], 'state') == 'deleted' then
    redis.call('DEL', keys[1])
  end
  redis.call('ZREM', keys[2], args[1])
  return 1
end

-- Removes ids that are not accounts from the list of accounts.
-- KEYS: accounts, profiles; ARGV: the profiles' ids
-- Returns for each 1 if it was removed, else 0.
local function unlist(keys, args)
  local done = {}
  for i, id in ipairs(args) do
    local is_account = redis.call('HGET', keys[1 + i], 'card')
    done[i] = is_account and 0 or redis.call('SREM', keys[1], id)
  end
  return done
end

register('user_repair_clock', repair_clock, 'allow-oom')
register('user_create', create)
register('user_claim', claim, 'allow-oom')
register('user_take', take_over, 'allow-oom')
register('user_release', release, 'allow-oom')
register('user_activate', activate, 'allow-oom')
register('user_abort', abort, 'allow-oom')
register('user_drop', drop, 'allow-oom')
register('user_attempt', attempt, 'allow-oom')
register('user_open_session', open_session, 'allow-oom')
register('user_change_password', change_password, 'allow-oom')
register('user_update', update)
register('user_delete', delete, 'allow-oom')
register('user_confirm_deletion', confirm_deletion, 'allow-oom')
register('user_unlist', unlist, 'allow-oom')
