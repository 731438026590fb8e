-- The Redis functions of the user service. Each uses one partition. Each is idempotent: a cluster
-- client repeats a call whose response is lost. Functions are isolated but do not roll back, so all
-- checks come before the first write. `issue`, `integer`, `now_ms`, `now_stamp` and `append_change`
-- are from the keyspace's prelude; an `issuer` is the argument of `issue`.
--
-- A profile with a `card` is an account. Without one, `state` has its state, and `draft` a card that
-- is not public:
--   pending    a running registration
--   aborted    an aborted registration, whose claims are being released
--   deleted    a deleted account, with only the claims to release
--   freed      a deleted account whose name is held; it expires with the hold
-- Without a profile there is no account, and never will be, since ids are never issued twice.
--
-- An account has three versions, which are stamps: `v` of its card, `w` of its password, and `e` of
-- the last end of a session. One that is missing is the id, the stamp of the registration.
--
-- Journalled are changes of accounts, with their versions, and of claims, with the id of the owner:
--   register, update, password, logout, delete, deleted    an account
--   claim, release                                         a claim of this partition
-- No entry has a text. Pending registrations, log-ins and new sessions are not journalled.

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

-- Returns the version of a change of an account: the server's time, or just after the last ones, if
-- the time went back.
local function next_version(id, ...)
  local version = tonumber(now_stamp(id))
  for _, last in ipairs({ ... }) do
    -- A millisecond later, in the same partition.
    version = math.max(version, tonumber(last or id) + 4096)
  end
  return integer(version)
end

-- Returns the server's time in Unix ms.
local function unix_ms()
  return EPOCH_MS + now_ms()
end

-- Starts registrations in one partition. Not a change to record, but a clock that lacks changes must
-- not issue ids again.
-- KEYS: clock, registrations, prefix of profile keys. The profile keys themselves cannot be named,
--   since their ids are issued here. The prefix has the hash tag, so they are in the same slot.
-- ARGV: issuer, then for each: draft, email, password, request
-- Returns the ids.
local function create(keys, args)
  newest_of_journal()
  local ids = issue(keys[1], tonumber(args[1]), (#args - 1) / 4)
  for i, id in ipairs(ids) do
    local at = 1 + (i - 1) * 4
    redis.call('HSET', keys[3] .. id, 'state', 'pending', 'draft', args[at + 1],
      'email', args[at + 2], 'password', args[at + 3], 'request', args[at + 4])
    redis.call('ZADD', keys[2], id, id)
  end
  return ids
end

-- Raises RECOVERING if the partition lacks changes: a missing profile there may be an account.
-- KEYS: clock
local function require_complete()
  newest_of_journal()
  return 1
end

-- Claims names or addresses that are free.
-- KEYS: claims of one partition; ARGV: for each the id that claims it
-- Returns the owner of each.
local function claim(keys, args)
  local owners = {}
  for i, key in ipairs(keys) do
    local owner = redis.call('GET', key)
    if not owner then
      append_change('claim', args[i], now_stamp(args[i]))
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
      append_change('claim', args[2 * i], now_stamp(args[2 * i]))
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
      append_change('release', id, now_stamp(id))
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
      append_change('register', id, id)
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

-- As `abort`, but raises RECOVERING if the partition lacks changes: what it shows as a registration may
-- be an account.
local function abort_registrations(keys, args)
  newest_of_journal()
  return abort(keys, args)
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

-- Ends a session, if it exists.
-- KEYS: profile, sessions; ARGV: id, fingerprint
-- Returns 1, or 0 if there is no such session.
local function close_session(keys, args)
  if not redis.call('ZSCORE', keys[2], args[2]) then
    return 0
  end
  local found = redis.call('HMGET', keys[1], 'email', 'e')
  local version = next_version(args[1], found[2])
  append_change('logout', args[1], version)
  if found[1] then
    redis.call('HSET', keys[1], 'e', version)
  end
  return redis.call('ZREM', keys[2], args[2])
end

-- Changes the password and ends all sessions.
-- KEYS: profile, sessions; ARGV: id, checked password hash, new hash
-- Returns 1, or 0 if the account or the password has changed.
local function change_password(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'password', 'w', 'e')
  if found[1] and found[2] == args[3] then
    return 1
  end
  if not found[1] or found[2] ~= args[2] then
    return 0
  end
  local version = next_version(args[1], found[3], found[4])
  append_change('password', args[1], version)
  redis.call('HSET', keys[1], 'password', args[3], 'w', version, 'e', version)
  redis.call('DEL', keys[2])
  return 1
end

-- Changes fields of a profile and keeps all others. Without a difference, nothing is a change.
-- KEYS: profile; ARGV: id, a card of the fields to change, without a name; an empty one is removed
-- Returns 1, 0 if there is no such account, or nil if its card is damaged.
local function update(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'v')
  if not found[1] then
    return 0
  end
  local fields = decode(found[1])
  if not fields then
    return nil
  end
  local current, changed, encoded, differs = {}, {}, {}, false
  for _, field in ipairs(fields) do
    current[field.tag] = field.encoded
  end
  for _, change in ipairs(split(args[2])) do
    changed[change.tag] = true
    if not change.is_empty then
      encoded[#encoded + 1] = change.encoded
    end
    differs = differs or current[change.tag] ~= (not change.is_empty and change.encoded or nil)
  end
  if not differs then
    -- The difference may have been recorded and lost.
    newest_of_journal()
    return 1
  end
  for _, field in ipairs(fields) do
    if not changed[field.tag] then
      encoded[#encoded + 1] = field.encoded
    end
  end
  local version = next_version(args[1], found[2])
  append_change('update', args[1], version)
  redis.call('HSET', keys[1], 'card', table.concat(encoded), 'v', version)
  return 1
end

-- Deletes an account, except for what is needed to release its claims.
-- KEYS: profile, sessions, accounts, deletions
-- ARGV: id, checked password hash, end of the hold of its name in Unix ms or 0
-- Returns 1, 0 if the account or the password has changed, or nil if the account is damaged.
local function delete(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'state', 'password', 'email', 'v', 'w', 'e')
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
  append_change('delete', args[1], next_version(args[1], found[5], found[6], found[7]))
  redis.call('DEL', keys[1], keys[2])
  redis.call('HSET', keys[1], 'state', 'deleted', 'draft', name, 'email', found[4])
  if args[3] ~= '0' then
    redis.call('HSET', keys[1], 'until', args[3])
  end
  redis.call('SREM', keys[3], args[1])
  redis.call('ZADD', keys[4], args[1], args[1])
  return 1
end

-- Keeps the name of a deleted account, without anything else, until the end of its hold.
local function keep_name(profile, freed, id, until_ms)
  redis.call('HSET', profile, 'state', 'freed')
  redis.call('HDEL', profile, 'email')
  redis.call('PEXPIREAT', profile, until_ms)
  redis.call('ZADD', freed, until_ms, id)
end

-- Deletes the rest of a deleted account after the release of its claims, except for a name that is
-- held.
-- KEYS: profile, deletions, freed; ARGV: id
local function confirm_deletion(keys, args)
  local found, now = redis.call('HMGET', keys[1], 'state', 'until'), unix_ms()
  local is_deleted = found[1] == 'deleted'
  if not is_deleted and not redis.call('ZSCORE', keys[2], args[1]) then
    return 1
  end
  append_change('deleted', args[1], now_stamp(args[1]))
  if is_deleted and tonumber(found[2] or 0) > now then
    keep_name(keys[1], keys[3], args[1], found[2])
  elseif is_deleted then
    redis.call('DEL', keys[1])
  end
  redis.call('ZREM', keys[2], args[1])
  redis.call('ZREMRANGEBYSCORE', keys[3], '-inf', integer(now))
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

-- Writes recorded accounts where Redis has older ones, or none. Ends the sessions of an account that
-- lacks an end of sessions: which ones had ended is not known.
-- KEYS: accounts, registrations; of each account: profile, sessions
-- ARGV: for each: id, card, email, password, request, versions of the card, of the password and of the
--   last end of a session
local function restore_accounts(keys, args)
  for i = 1, #args / 8 do
    local id, card, email, password, request, v, w, e = unpack(args, 8 * i - 7, 8 * i)
    local profile, sessions = keys[2 * i + 1], keys[2 * i + 2]
    local found = redis.call('HMGET', profile, 'card', 'state', 'v', 'w', 'e')
    local is_older = function(version, recorded)
      return not found[1] or tonumber(version or id) < tonumber(recorded)
    end
    if found[2] ~= 'deleted' and found[2] ~= 'freed' then
      if not found[1] then
        redis.call('DEL', profile)
        redis.call('HSET', profile, 'email', email, 'request', request)
      end
      if is_older(found[3], v) then
        redis.call('HSET', profile, 'card', card, 'v', v)
      end
      if is_older(found[4], w) then
        redis.call('HSET', profile, 'password', password, 'w', w)
      end
      if is_older(found[5], e) then
        redis.call('HSET', profile, 'e', e)
        redis.call('DEL', sessions)
      end
      redis.call('SADD', keys[1], id)
      redis.call('ZREM', keys[2], id)
    end
  end
  return #args / 8
end

-- Restores deletions of accounts that Redis lacks. An account or registration that Redis still has
-- is to be deleted everywhere again. A confirmed one that it does not have keeps its name until the
-- end of the hold.
-- KEYS: accounts, registrations, deletions, freed; of each account: profile, sessions
-- ARGV: for each: id, card of its name, email, end of the hold in Unix ms or 0, 1 if it is confirmed
local function restore_deletions(keys, args)
  local now = unix_ms()
  for i = 1, #args / 5 do
    local id, draft, email, until_ms, confirmed = unpack(args, 5 * i - 4, 5 * i)
    local profile, sessions = keys[2 * i + 3], keys[2 * i + 4]
    local found = redis.call('HMGET', profile, 'card', 'state', 'draft', 'email')
    local is_missing = not found[1] and not found[2]
    if is_missing and confirmed == '1' then
      if tonumber(until_ms) > now then
        redis.call('HSET', profile, 'draft', draft, 'until', until_ms)
        keep_name(profile, keys[4], id, until_ms)
      end
    elseif found[2] ~= 'deleted' and found[2] ~= 'freed' then
      local _, name = decode(found[1] or found[3])
      redis.call('DEL', profile, sessions)
      redis.call('HSET', profile, 'state', 'deleted', 'draft', name or draft, 'email',
        found[4] or email, 'until', until_ms)
      redis.call('SREM', keys[1], id)
      redis.call('ZREM', keys[2], id)
      redis.call('ZADD', keys[3], id, id)
    end
  end
  return #args / 5
end

-- Restores claims by compare-and-set.
-- KEYS: claims of one partition
-- ARGV: for each: owner that was read or '', new owner, end of the hold in Unix ms or 0
local function restore_claims(keys, args)
  for i, key in ipairs(keys) do
    local seen, owner, until_ms = unpack(args, 3 * i - 2, 3 * i)
    if (redis.call('GET', key) or '') == seen then
      if until_ms == '0' then
        redis.call('SET', key, owner)
      else
        redis.call('SET', key, owner, 'PXAT', until_ms)
      end
    end
  end
  return #keys
end

register('user_repair_clock', repair_clock, 'allow-oom')
register('user_raise_clock', raise_clock, 'allow-oom')
register_recovery('user_restore_accounts', restore_accounts)
register_recovery('user_restore_deletions', restore_deletions, 'allow-oom')
register_recovery('user_restore_claims', restore_claims)
register_change('user_create', create)
register_change('user_require_complete', require_complete, 'allow-oom')
register_change('user_claim', claim, 'allow-oom')
register_change('user_take', take_over, 'allow-oom')
register_change('user_release', release, 'allow-oom')
register_change('user_activate', activate, 'allow-oom')
register_change('user_abort', abort_registrations, 'allow-oom')
register('user_abort_unchecked', abort, 'allow-oom')
register('user_drop', drop, 'allow-oom')
register('user_attempt', attempt, 'allow-oom')
register('user_open_session', open_session, 'allow-oom')
register_change('user_close_session', close_session, 'allow-oom')
register_change('user_change_password', change_password, 'allow-oom')
register_change('user_update', update)
register_change('user_delete', delete, 'allow-oom')
register_change('user_confirm_deletion', confirm_deletion, 'allow-oom')
register('user_unlist', unlist, 'allow-oom')
