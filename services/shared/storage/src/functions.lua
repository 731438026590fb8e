-- The functions with which an entry of the cache changes: apply, lease, install; and the mark of a
-- primary. They know no service: what an item contains is the service's.
--
-- An entry is a string:
--
--   format (1 byte), reserved (3), length of the front (4, big endian), revision (8, big endian),
--   front, records
--
-- The front is of the item's kind. A record is the id of an account or a post (7 bytes, big endian)
-- and a time (6 bytes), oldest first, so that a newer one is appended. Beside an entry of more than
-- SMALL records is a set of the same ids, with the member 0, by which a reader sees that the set was
-- there. Ids, times and revisions are below 2^53, hence exact as Lua numbers.
--
-- A lease is a list: a token, and then each change that was applied meanwhile, as the four arguments
-- of a change.
--
-- KEYS of each function: entry, lease, set. The keys contain the history of the database, so an entry
-- of another history is another key.

local FORMAT, HEADER, RECORD = 1, 16, 13
local SMALL = 48
-- The most changes that a lease collects.
local COLLECTED_MAX = 64
-- Lists are cut when they exceed their limit by a fifth, so that a cut is rare.
local CUT_FACTOR = 1.2
-- The most arguments of one command: Lua's stack has 8,000.
local ARGUMENTS_MAX = 4000

-- Returns the revision of an entry and the length of its front; nil if there is no entry, or one of
-- another format.
local function head_of(entry)
  local header = redis.call('GETRANGE', entry, 0, HEADER - 1)
  if #header == HEADER and string.byte(header) == FORMAT then
    return struct.unpack('>I8', header, 9), struct.unpack('>I4', header, 5)
  end
end

local function header_of(revision, front)
  return struct.pack('>BBBBI4I8', FORMAT, 0, 0, 0, #front, revision)
end

local function ids_of(records)
  local ids = {}
  for at = 1, #records, RECORD do
    ids[#ids + 1] = integer(struct.unpack('>I7', records, at))
  end
  return ids
end

-- Adds ids to a set, or removes them.
local function change_set(command, set, ids)
  for at = 1, #ids, ARGUMENTS_MAX do
    redis.call(command, set, unpack(ids, at, math.min(at + ARGUMENTS_MAX - 1, #ids)))
  end
end

-- Deletes an entry with all that belongs to it. That is always right: the next read loads it again.
local function delete(keys)
  redis.call('UNLINK', keys[1], keys[2], keys[3])
end

-- Writes an entry. Lists of more than SMALL records get a set.
local function write(keys, revision, front, records, lifetime)
  redis.call('SET', keys[1], header_of(revision, front) .. front .. records, 'EX', lifetime)
  if #records > SMALL * RECORD then
    local ids = ids_of(records)
    ids[#ids + 1] = '0'
    change_set('SADD', keys[3], ids)
    redis.call('EXPIRE', keys[3], lifetime)
  end
end

-- Puts a change in place: a new front, and newer records. Cuts the oldest ones beyond the limit.
local function put(keys, front_length, change, limit, lifetime)
  local revision, front, records = tonumber(change[2]), change[3], change[4]
  local length = redis.call('STRLEN', keys[1])
  local before = length - HEADER - front_length
  local after = before + #records
  local is_cut = after > limit * RECORD * CUT_FACTOR
  local gets_set = before <= SMALL * RECORD and after > SMALL * RECORD
  if #front ~= front_length or is_cut or gets_set then
    local all = redis.call('GETRANGE', keys[1], HEADER + front_length, -1) .. records
    if is_cut then
      all = string.sub(all, -limit * RECORD)
    end
    redis.call('UNLINK', keys[3])
    write(keys, revision, front, all, lifetime)
    return
  end
  redis.call('SETRANGE', keys[1], 0, header_of(revision, front) .. front)
  redis.call('APPEND', keys[1], records)
  if after > SMALL * RECORD then
    -- A set that was evicted alone makes the entry useless.
    if redis.call('SISMEMBER', keys[3], '0') == 0 then
      delete(keys)
    else
      change_set('SADD', keys[3], ids_of(records))
    end
  end
end

-- Brings an entry to a revision that is committed: a change from revision `before` to `after`, or
-- without a change the knowledge that `after` is committed.
--
-- ARGV: before, after, front and records that are appended (both empty: no change to put in place),
--       the most records, lifetime in seconds.
-- Returns what was done: 'absent', 'collected', 'newer', 'put', 'deleted'.
local function apply(keys, args)
  local before, after = tonumber(args[1]), tonumber(args[2])
  local has_change = args[3] ~= ''
  local revision, front_length = head_of(keys[1])
  if not revision then
    local collected = redis.call('LLEN', keys[2])
    if collected > 0 and has_change and collected <= COLLECTED_MAX * 4 then
      redis.call('RPUSH', keys[2], unpack(args, 1, 4))
      return 'collected'
    end
    delete(keys)
    return 'absent'
  elseif revision >= after then
    return 'newer'
  elseif revision == before and has_change then
    put(keys, front_length, args, tonumber(args[5]), args[6])
    return 'put'
  end
  delete(keys)
  return 'deleted'
end

-- Takes the lease on the load of an entry, if there is neither an entry nor a lease.
--
-- ARGV: token, lifetime of the lease in milliseconds. Returns 1 if it was taken, else 0.
local function lease(keys, args)
  if redis.call('LINDEX', keys[2], 0) == args[1] then
    -- The call is repeated.
    return 1
  end
  if head_of(keys[1]) or redis.call('EXISTS', keys[2]) == 1 then
    return 0
  end
  redis.call('RPUSH', keys[2], args[1])
  redis.call('PEXPIRE', keys[2], args[2])
  return 1
end

-- Ends a lease with the entry that was loaded, and the changes that were collected meanwhile.
--
-- ARGV: token, revision, front, records, the most records, lifetime in seconds.
-- Returns 1 if the entry is there, 0 if the lease is another one, or a change is missing.
local function install(keys, args)
  local held = redis.call('LRANGE', keys[2], 0, -1)
  if held[1] ~= args[1] then
    return 0
  end
  delete(keys)
  local revision, limit, lifetime = tonumber(args[2]), tonumber(args[5]), args[6]
  write(keys, revision, args[3], args[4], lifetime)
  for at = 2, #held, 4 do
    local before, after = tonumber(held[at]), tonumber(held[at + 1])
    if after > revision then
      if before ~= revision then
        delete(keys)
        return 0
      end
      local _, front_length = head_of(keys[1])
      put(keys, front_length, { unpack(held, at, at + 3) }, limit, lifetime)
      revision = after
    end
  end
  return 1
end

-- Returns the replication id of this server; nil if it is no primary.
local function replication_id()
  local info = redis.call('INFO', 'replication')
  if string.find(info, 'role:master', 1, true) then
    return string.match(info, 'master_replid:(%x+)')
  end
end

-- Writes the mark of a primary: whatever the database had committed up to a position of the feed is
-- applied to the entries of some partitions. Not if the server has another replication id than when the
-- verifier began. The time is that of the server when the verifier began: what was committed later is not
-- in the mark. Nor if the mark is another one by now: a writer has ended it.
--
-- KEYS: mark. ARGV: replication id, history, position (with the time of its row), partitions (bits), time;
-- replication id, history and position of the mark when the verifier began, '' if there was none.
-- Returns 1 if it was written, else 0.
local function mark(keys, args)
  local known = redis.call('HMGET', keys[1], 'replication_id', 'history', 'position')
  for at = 1, #known do
    if (known[at] or '') ~= args[5 + at] then
      return 0
    end
  end
  if replication_id() ~= args[1] then
    return 0
  end
  redis.call('HSET', keys[1], 'replication_id', args[1], 'history', args[2], 'position', args[3],
    'partitions', args[4], 'time', args[5])
  return 1
end

-- Ends a mark of another history. KEYS: mark. ARGV: history. Returns 1 if there was one, else 0.
local function end_mark(keys, args)
  local history = redis.call('HGET', keys[1], 'history')
  if history and history ~= args[1] then
    return redis.call('UNLINK', keys[1])
  end
  return 0
end

-- Renews the time of a mark: no later one was written, the server still has its replication id, and the
-- mark is young enough to be relied on.
--
-- KEYS: mark. ARGV: replication id, history, position, time of the mark, its greatest age in seconds.
-- Returns the new time in seconds, or 0.
local function keep(keys, args)
  local known = redis.call('HMGET', keys[1], 'replication_id', 'history', 'position', 'time')
  local now = tonumber(redis.call('TIME')[1])
  if replication_id() ~= args[1] or now - tonumber(args[4]) > tonumber(args[5]) then
    return 0
  end
  for at = 1, #known do
    if known[at] ~= args[at] then
      return 0
    end
  end
  redis.call('HSET', keys[1], 'time', now)
  return now
end

-- Returns the server's own replication id ('' if it is no primary), its time in seconds, and the mark, if
-- there is one: replication id, history, position, partitions, time.
--
-- KEYS: mark.
local function read_mark(keys)
  local fields = { 'replication_id', 'history', 'position', 'partitions', 'time' }
  local known = redis.call('HMGET', keys[1], unpack(fields))
  local now = redis.call('TIME')[1]
  if not known[1] then
    return { replication_id() or '', now }
  end
  return { replication_id() or '', now, unpack(known) }
end

register('apply', apply, 'allow-oom')
register('lease', lease)
register('install', install)
register('mark', mark, 'allow-oom')
register('end_mark', end_mark, 'allow-oom')
register('keep', keep, 'allow-oom')
register('read_mark', read_mark, 'allow-oom')
