-- The change journal of a partition: a stream with every change of the partition's state, in order.
-- Consumers read it, each from a position of its own (see `journal.rs`).
--
-- The id of an entry, `<epoch>-<number>`, is the version of the change. Within an epoch, numbers grow
-- by one. A recovery from a loss of data begins a new epoch. The field `c` of an entry is the
-- change: its kind, the ids of its subject, and a stamp, separated by spaces. It has no texts.
--
-- A partition without the stream has no journal, and its changes are not recorded. The stream always
-- keeps its newest entry. While that is `recovering <id>`, the partition is being recovered.
--
-- What must hold:
--   * a function that changes the state appends the change, or fails before it changes anything;
--   * no function appends to a journal that lacks an entry which the caller has seen.

-- The journal of the running call: its key; the epoch and the number of the newest version that the
-- caller has seen; the start of the ids that it appends, or false if there is no journal, once known;
-- the version and the entry of the last change that it has appended, or false.
local journal = {}

-- Returns the newest entry of the running call's journal, or nothing, and the epoch. Raises RECOVERING
-- if it lacks what the caller has seen, or while it is being recovered. Needs XREVRANGE.
local function newest_of_journal()
  local newest = redis.call('XREVRANGE', journal.key, '+', '-', 'COUNT', 1)[1]
  local epoch, number = string.match(newest and newest[1] or '0-0', '^(%d+)-(%d+)$')
  epoch, number = tonumber(epoch), tonumber(number)
  if epoch < journal.epoch or epoch == journal.epoch and number < journal.number then
    error({ err = 'RECOVERING the partition has lost changes' })
  end
  if newest and string.sub(newest[2][2], 1, 11) == 'recovering ' then
    error({ err = 'RECOVERING the partition is being recovered' })
  end
  return newest, integer(epoch)
end

-- Appends a change to the journal of the running call. A function calls it after its checks and
-- before its first write of state. Raises RECOVERING. Needs XADD and XREVRANGE.
local function append_change(...)
  if journal.prefix == nil then
    local newest, epoch = newest_of_journal()
    journal.prefix = newest and epoch .. '-*' or false
  end
  if journal.prefix then
    journal.entry = table.concat({ ... }, ' ')
    journal.version = redis.call('XADD', journal.key, journal.prefix, 'c', journal.entry)
  end
end

-- Registers a function that changes the state. Its last key is the journal. Its last arguments are
-- the epoch and the number of the newest version that the caller has seen, or 0 and 0, and 1 if the
-- caller waits until what it relies on is durable, else 0.
-- Returns the function's result, and the version and the entry of the last change that it has
-- appended, if any. For a caller that waits, a function that appended nothing returns the newest
-- change: its result relies on that and earlier ones.
local function register_change(name, callback, flag)
  register(name, function(keys, args)
    local waits = table.remove(args) == '1'
    local number = tonumber(table.remove(args))
    local epoch = tonumber(table.remove(args))
    journal = { key = table.remove(keys), epoch = epoch, number = number }
    local result = callback(keys, args)
    if result == nil then
      result = false
    end
    if waits and not journal.version then
      local newest = newest_of_journal()
      if newest then
        journal.version, journal.entry = newest[1], newest[2][2]
      end
    end
    return { result, journal.version or false, waits and journal.entry or false }
  end, flag)
end

-- Registers a function of a recovery, whose changes are not appended. Its last key is the journal, and
-- its last argument the version of the entry that began the recovery. Raises RECOVERING unless that is
-- the newest entry: else another recovery has begun since, as after a pause of the caller. Needs
-- XREVRANGE.
local function register_recovery(name, callback, flag)
  register(name, function(keys, args)
    local version = table.remove(args)
    local newest = redis.call('XREVRANGE', table.remove(keys), '+', '-', 'COUNT', 1)[1]
    if not newest or newest[1] ~= version then
      error({ err = 'RECOVERING another recovery has begun' })
    end
    journal = { prefix = false }
    return callback(keys, args)
  end, flag)
end

-- Writes a key, so that WAIT on the same connection waits for all writes before this one (see
-- `replication.rs`). Frees nothing, but completes what is written already. Needs SET.
--
-- KEYS: any key of its own.
register('mark_replicated', function(keys)
  return redis.call('SET', keys[1], '')
end, 'allow-oom')
