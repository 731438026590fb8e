-- The functions with which an entry of the cache changes: apply, lease, install; and the mark of a
-- primary. They know no service: what an item contains is the service's.
--
-- An entry is a string:
--
--   format (1 byte), reserved (3), length of the front (4, big endian), revision (8, big endian),
--   front, records
--
-- The front is of the item's kind. A record is a number (12 bytes, big endian): a time (43 bits), and
-- below it the id of an account or a post (53 bits). The oldest record is first, so that a newer one is
-- appended. Beside a long entry of some kinds is a set of the same ids, with the member 0, by which a
-- reader sees that the set was there: it may be evicted alone. Ids and revisions are below 2^53, hence
-- exact as Lua numbers.
--
-- A lease is of a loader, or of a writer that creates an item. It is a list: a token, and then each change that was applied meanwhile, as the five arguments
-- of a change.
--
-- KEYS of the functions of entries: entry, lease, set. The keys contain the history of the database, so an
-- entry of another history is another key. None is rolled back if it fails: the set changes first, so that
-- an entry never has a revision that its set does not have.

local FORMAT, HEADER, RECORD, ID = 2, 16, 12, 8
-- A shorter entry is read with its header, and written whole: that takes fewer commands.
local WHOLE = 1024
-- The most changes that a lease collects, and the arguments of each: the revisions before and after, the
-- front, the records that are appended, and the ids whose records are removed first.
local COLLECTED_MAX, CHANGE = 64, 5
-- The most records that a change removes: each takes time in proportion to the length of the entry.
local REMOVED_MAX = 16
-- The most arguments of one command: Lua's stack has 8,000.
local ARGUMENTS_MAX = 4000

-- Returns the revision of an entry, the length of its front, and its first bytes; nil if there is no
-- entry, or one of another format.
local function head_of(entry)
  local head = redis.call('GETRANGE', entry, 0, WHOLE - 1)
  if #head >= HEADER and string.byte(head) == FORMAT then
    return struct.unpack('>I8', head, 9), struct.unpack('>I4', head, 5), head
  end
end

local function header_of(revision, front_length)
  return struct.pack('>BBBBI4I8', FORMAT, 0, 0, 0, front_length, revision)
end

-- Returns what arguments tell of the entries of a kind: the records of a longer list at least and at most, the
-- most of an entry without a set, and the lifetime in seconds.
local function limits_of(args, first)
  return {
    records = tonumber(args[first]) * RECORD,
    cut = tonumber(args[first + 1]) * RECORD,
    without_set = tonumber(args[first + 2]) * RECORD,
    lifetime = args[first + 3],
  }
end

-- Returns the ids of records.
local function ids_of(records)
  local ids = {}
  for at = 1, #records, RECORD do
    -- The id begins in the middle of a byte.
    local high, low = struct.unpack('>BI6', records, at + 5)
    ids[#ids + 1] = integer(high % 32 * 2 ^ 48 + low)
  end
  return ids
end

-- Returns where the record of an id begins; nil if there is none.
local function place_of(records, id)
  -- Bytes are found quickly, but may be those of a time, or of two records.
  local low = string.sub(id, 3)
  local at = string.find(records, low, 1, true)
  while at do
    local place = at - 6
    if (place - 1) % RECORD == 0 and string.byte(records, at - 1) % 32 == string.byte(id, 2) then
      return place
    end
    at = string.find(records, low, at + 1, true)
  end
end

-- Adds ids to a set, or removes them. Returns how many it changed.
local function change_set(command, set, ids)
  local changed = 0
  for at = 1, #ids, ARGUMENTS_MAX do
    local last = math.min(at + ARGUMENTS_MAX - 1, #ids)
    changed = changed + redis.call(command, set, unpack(ids, at, last))
  end
  return changed
end

local function delete(keys)
  redis.call('UNLINK', keys[1], keys[2], keys[3])
end

-- Writes an entry, with its set.
local function write(keys, revision, front, records, limits)
  if #records > limits.without_set then
    local ids = ids_of(records)
    ids[#ids + 1] = '0'
    change_set('SADD', keys[3], ids)
    redis.call('EXPIRE', keys[3], limits.lifetime)
  end
  local entry = header_of(revision, #front) .. front .. records
  redis.call('SET', keys[1], entry, 'EX', limits.lifetime)
end

-- Changes the set beside an entry. One that was evicted stays away: who needs it loads the entry again.
local function update_set(set, removed, added)
  local number = #added
  -- In a set that is there, it is no new member.
  added[number + 1] = '0'
  if change_set('SREM', set, removed) ~= #removed or change_set('SADD', set, added) ~= number then
    redis.call('UNLINK', set)
  end
end

-- Returns records without those of some ids, and which of the ids were among them.
local function without(records, removed)
  local found = {}
  for at = 1, #removed, ID do
    local place = place_of(records, string.sub(removed, at, at + ID - 1))
    if place then
      found[#found + 1] = integer(struct.unpack('>I8', removed, at))
      records = string.sub(records, 1, place - 1) .. string.sub(records, place + RECORD)
    end
  end
  return records, found
end

-- Puts a change in place: a new front, or the beginning of a longer one, without some records, and with
-- newer ones. Cuts the oldest ones beyond the limit. Deletes an entry of which that is not enough. Returns
-- whether the entry is there.
local function put(keys, head, front_length, change, limits)
  local revision, front, added, removed = tonumber(change[2]), change[3], change[4], change[5]
  local is_whole = #head < WHOLE
  local length = is_whole and #head or redis.call('STRLEN', keys[1])
  local before = length - HEADER - front_length
  local has_set, may_be_cut = before > limits.without_set, before >= limits.records
  local is_cut = before + #added > limits.cut
  local is_in_place = #front <= front_length and removed == '' and not is_cut
  if is_in_place and not is_whole and (has_set or added == '') then
    if added ~= '' then
      update_set(keys[3], {}, ids_of(added))
    end
    redis.call('SETRANGE', keys[1], 0, header_of(revision, front_length) .. front)
    if added ~= '' then
      redis.call('APPEND', keys[1], added)
    end
    return true
  end
  local entry = is_whole and head or redis.call('GETRANGE', keys[1], 0, -1)
  local all = string.sub(entry, HEADER + front_length + 1)
  front = front .. string.sub(entry, HEADER + #front + 1, HEADER + front_length)
  local is_too_much = #removed > REMOVED_MAX * ID
  local rest, found = without(all, is_too_much and '' or removed)
  -- Of a list that may have been cut, the record may be an older one; and an older one that is not known
  -- here may take its place.
  local is_missing = not may_be_cut and #found * ID < #removed
  local records = rest .. added
  if is_too_much or is_missing or may_be_cut and #records < limits.records then
    delete(keys)
    return false
  end
  if is_cut or has_set ~= (#records > limits.without_set) then
    delete(keys)
    if is_cut then
      -- Between the limits, so that the end of a newer one leaves enough.
      local kept = math.floor((limits.records + limits.cut) / 2 / RECORD) * RECORD
      records = string.sub(records, -kept)
    end
    write(keys, revision, front, records, limits)
    return true
  end
  if has_set then
    update_set(keys[3], found, ids_of(added))
  end
  redis.call('SET', keys[1], header_of(revision, #front) .. front .. records, 'KEEPTTL')
  return true
end

-- Brings an entry to a revision that is committed: a change from revision `before` to `after`, or
-- without a change the knowledge that `after` is committed.
--
-- ARGV: before, after, front (empty: no change to put in place), records that are appended, ids whose
--       records are removed first, the limits.
-- Returns what was done: 'absent', 'collected', 'newer', 'put', 'deleted'.
local function apply(keys, args)
  local before, after = tonumber(args[1]), tonumber(args[2])
  local has_change = args[3] ~= ''
  local revision, front_length, head = head_of(keys[1])
  if not revision then
    -- With the token before the changes.
    local length = redis.call('LLEN', keys[2])
    if length > 0 and has_change and length <= COLLECTED_MAX * CHANGE then
      redis.call('RPUSH', keys[2], unpack(args, 1, CHANGE))
      return 'collected'
    end
    delete(keys)
    return 'absent'
  elseif revision >= after then
    return 'newer'
  elseif revision == before and has_change then
    return put(keys, head, front_length, args, limits_of(args, 6)) and 'put' or 'deleted'
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
-- ARGV: token, revision, front, records, the limits.
-- Returns 1 if the entry is there, 0 if the lease is another one, or a change is missing.
local function install(keys, args)
  local held = redis.call('LRANGE', keys[2], 0, -1)
  if held[1] ~= args[1] then
    return 0
  end
  delete(keys)
  local limits = limits_of(args, 5)
  write(keys, tonumber(args[2]), args[3], args[4], limits)
  for at = 2, #held, CHANGE do
    local change = { unpack(held, at, at + CHANGE - 1) }
    local revision, front_length, head = head_of(keys[1])
    if tonumber(change[2]) > revision then
      if tonumber(change[1]) ~= revision then
        delete(keys)
        return 0
      elseif not put(keys, head, front_length, change, limits) then
        return 0
      end
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

-- Returns whether a mark is the one with a replication id, a history and a position; '' of each: there is
-- none.
local function is_mark(key, args, first)
  local known = redis.call('HMGET', key, 'replication_id', 'history', 'position')
  for at = 1, #known do
    if (known[at] or '') ~= args[first + at - 1] then
      return false
    end
  end
  return true
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
  if not is_mark(keys[1], args, 6) or replication_id() ~= args[1] then
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

-- Renews the time of a mark: none with another position was written, the server still has its replication
-- id, and the mark is young enough to be relied on.
--
-- KEYS: mark. ARGV: replication id, history, position, greatest age in seconds. Returns 1, or 0.
local function keep(keys, args)
  if not is_mark(keys[1], args, 1) or replication_id() ~= args[1] then
    return 0
  end
  local now = tonumber(redis.call('TIME')[1])
  if now - tonumber(redis.call('HGET', keys[1], 'time')) > tonumber(args[4]) then
    return 0
  end
  redis.call('HSET', keys[1], 'time', now)
  return 1
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
