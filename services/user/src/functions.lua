-- The atomic steps of the user service. Each function touches one partition. Each can be repeated:
-- a cluster client repeats a call whose answer was lost. Arguments are checked before the first
-- write, since a function is isolated but not rolled back. `issue`, `integer` and `now_ms` are the
-- keyspace's own; an `issuer` is what `issue` takes.
--
-- A profile with a `card` is an account. One without says by its `state` what it is, and has the
-- texts of a card in `draft`, where nobody sees them:
--   pending    a registration under way
--   aborted    a registration given up, whose claims are being released
--   deleted    a deleted account, of which only the claims to release are left
-- No profile: there is no such account, and as ids are never issued twice, there never will be.

-- A card is what everybody may see of an account, in one text: these parts in this order, an empty
-- one where there is no text, and between them what no text contains. `store/card.rs` says the same
-- in Rust.
local PARTS = { 'name', 'display_name', 'bio', 'avatar_url', 'location' }
local SEPARATOR = '\31'
local EACH = '([^' .. SEPARATOR .. ']*)' .. SEPARATOR

-- Returns the parts of a card or draft by their names; nothing where it is missing or damaged.
local function split(card)
  local texts = {}
  for text in string.gmatch((card or '') .. SEPARATOR, EACH) do
    texts[#texts + 1] = text
  end
  if #texts ~= #PARTS then
    return nil
  end
  local parts = {}
  for i, part in ipairs(PARTS) do
    parts[part] = texts[i]
  end
  return parts
end

-- Returns the card of these parts.
local function join(parts)
  local texts = {}
  for i, part in ipairs(PARTS) do
    texts[i] = parts[part] or ''
  end
  return table.concat(texts, SEPARATOR)
end

-- Begins registrations in one partition.
-- KEYS: clock, registrations, prefix of the profiles' keys. The profiles' own keys cannot be named:
--   their ids, which end them, are issued here. With the prefix's hash tag they lie in the same slot.
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
-- Returns for each who has it now.
local function claim(keys, args)
  local holders = {}
  for i, key in ipairs(keys) do
    local holder = redis.call('GET', key)
    if not holder then
      redis.call('SET', key, args[i])
      holder = args[i]
    end
    holders[i] = holder
  end
  return holders
end

-- Takes over claims from accounts that are gone.
-- KEYS: claims of one partition; ARGV: for each the id of who has it, the id of who takes it
-- Returns for each who has it now.
local function take(keys, args)
  local holders = {}
  for i, key in ipairs(keys) do
    local holder = redis.call('GET', key)
    if not holder or holder == args[2 * i - 1] then
      redis.call('SET', key, args[2 * i])
      holder = args[2 * i]
    end
    holders[i] = holder
  end
  return holders
end

-- Gives claims back, where they still are the id's. What is to be held belongs to nobody until then:
-- it has the id with a minus sign, and expires.
-- KEYS: claims of one partition; ARGV: for each the id, for how many ms it is held or 0
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

-- Makes accounts of registrations that hold both claims.
-- KEYS: registrations, accounts, profiles; ARGV: the profiles' ids
-- Returns for each 1, or 0 if it was aborted meanwhile or its draft is damaged.
local function activate(keys, args)
  local done = {}
  for i, id in ipairs(args) do
    local profile = keys[2 + i]
    local found = redis.call('HMGET', profile, 'card', 'state', 'draft')
    local alive = found[1]
    if found[2] == 'pending' and split(found[3]) then
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

-- Gives registrations up, so that they can become accounts no more.
-- KEYS: registrations, profiles; ARGV: the profiles' ids
-- Returns for each its draft and email, whose claims are to be released, or nothing.
local function abort(keys, args)
  local claims = {}
  for i, id in ipairs(args) do
    local profile = keys[1 + i]
    local found = redis.call('HMGET', profile, 'state', 'draft', 'email')
    claims[i] = {}
    if found[1] == 'pending' or found[1] == 'aborted' then
      redis.call('HSET', profile, 'state', 'aborted')
      claims[i] = { found[2], found[3] }
    else
      redis.call('ZREM', keys[1], id)
    end
  end
  return claims
end

-- Forgets registrations that became nothing.
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

-- Counts a log-in in advance as failed, unless one must wait; and finds who has what it counts for.
-- KEYS: attempts, claim on the name or address that they count for
-- ARGV: a text that is this attempt's own, memory in ms while failures are free, memory in ms, then
--   the waits in ms after 1, 2, 3 ... failures
-- Returns how many ms are left to wait, and the id of who has it or ''.
local function attempt(keys, args)
  local now = now_ms()
  local seen = redis.call('HMGET', keys[1], 'failures', 'until', 'last')
  local failures, until_ms = tonumber(seen[1] or '0'), tonumber(seen[2] or '0')
  local holder = redis.call('GET', keys[2]) or ''
  if seen[3] == args[1] then
    return { 0, holder }
  end
  local longest = tonumber(args[#args])
  -- A clock set back must not lock anybody out for longer than the longest wait.
  if now < until_ms and until_ms - now <= longest then
    return { until_ms - now, holder }
  end
  failures = failures + 1
  local wait = tonumber(args[3 + failures] or args[#args])
  redis.call('HSET', keys[1], 'failures', integer(failures), 'until', integer(now + wait),
    'last', args[1])
  redis.call('PEXPIRE', keys[1], wait == 0 and args[2] or args[3])
  return { 0, holder }
end

-- Opens a session, if the password that was checked still is the account's.
-- KEYS: profile, sessions
-- ARGV: password hash that was checked, fingerprint, end of the session and now in Unix ms, most sessions
-- Returns 1, or 0 if the account or the password is another now.
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
-- KEYS: profile, sessions; ARGV: password hash that was checked, the new one
-- Returns 1, or 0 if the account or the password is another now.
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

-- Changes parts of a profile; an empty text clears one.
-- KEYS: profile; ARGV: part, text ...
-- Returns 1, 0 if there is no such account, or nothing if its card is damaged.
local function update(keys, args)
  local card = redis.call('HGET', keys[1], 'card')
  if not card then
    return 0
  end
  local parts = split(card)
  if not parts then
    return nil
  end
  for i = 1, #args, 2 do
    parts[args[i]] = args[i + 1]
  end
  redis.call('HSET', keys[1], 'card', join(parts))
  return 1
end

-- Deletes an account: only what is needed to release its claims is left.
-- KEYS: profile, sessions, accounts, deletions; ARGV: id, password hash that was checked
-- Returns 1, 0 if the account or the password is another now, or nothing if the account is damaged.
local function delete(keys, args)
  local found = redis.call('HMGET', keys[1], 'card', 'state', 'password', 'email')
  if found[2] == 'deleted' then
    return 1
  end
  if not found[1] or found[3] ~= args[2] then
    return 0
  end
  local parts = split(found[1])
  if not parts or not found[4] then
    return nil
  end
  redis.call('DEL', keys[1], keys[2])
  redis.call('HSET', keys[1], 'state', 'deleted', 'draft', join({ name = parts.name }),
    'email', found[4])
  redis.call('SREM', keys[3], args[1])
  redis.call('ZADD', keys[4], args[1], args[1])
  return 1
end

-- Forgets a deleted account whose claims have been released.
-- KEYS: profile, deletions; ARGV: id
local function confirm_deletion(keys, args)
  if redis.call('HGET', keys[1], 'state') == 'deleted' then
    redis.call('DEL', keys[1])
  end
  redis.call('ZREM', keys[2], args[1])
  return 1
end

-- Takes ids that are no accounts off the list of accounts.
-- KEYS: accounts, profiles; ARGV: the profiles' ids
-- Returns for each 1 if it was taken off, else 0.
local function unlist(keys, args)
  local done = {}
  for i, id in ipairs(args) do
    local is_account = redis.call('HGET', keys[1 + i], 'card')
    done[i] = is_account and 0 or redis.call('SREM', keys[1], id)
  end
  return done
end

register('user_mend_clock', mend_clock, 'allow-oom')
register('user_create', create)
register('user_claim', claim, 'allow-oom')
register('user_take', take, 'allow-oom')
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
