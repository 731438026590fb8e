-- The change journal of a partition: a stream with every change of the partition's state, in order.
-- Consumers read it, each from a position of its own (see `journal.rs`).
--
-- The id of an entry, `<epoch>-<number>`, is the version of the change. Within an epoch, numbers grow
-- by one. A recovery from a loss of data begins a new epoch. The field `c` of an entry is the
-- change: its kind, the ids of its subject, and a stamp, separated by spaces. It has no texts.
--
-- A partition without the stream has no journal, and its changes are not recorded. The stream always
-- keeps its newest entry. While that is `recovering …`, the partition is being recovered, or is to be.
-- That entry begins an epoch: its number is 0.
--
-- What must hold:
--   * a function that changes the state appends the change, or fails before it changes anything;
--   * no function appends to a journal that lacks an entry which the caller has seen.

-- The journal of the running call: its key; the epoch, in digits, and the number of the newest version
-- that the caller has seen; the start of the ids that it appends, or false if there is no journal, once
-- known; the version and the entry of the last change that it has appended, or false.
local journal = {}

local function reject_lost()
  error({ err = 'RECOVERING the partition has lost changes' })
end

-- Returns the newest entry of the running call's journal, or nothing, and the epoch. Raises RECOVERING
-- if it lacks what the caller has seen, or while it is being recovered. Needs XREVRANGE.
local function newest_of_journal()
  local newest = redis.call('XREVRANGE', journal.key, '+', '-', 'COUNT', 1)[1]
  local epoch, number = string.match(newest and newest[1] or '0-0', '^(%d+)-(%d+)$')
  local seen = tonumber(journal.epoch)
  epoch, number = tonumber(epoch), tonumber(number)
  if epoch < seen or epoch == seen and number < journal.number then
    reject_lost()
  end
  if newest and string.sub(newest[2][2], 1, 11) == 'recovering ' then
    error({ err = 'RECOVERING the partition is being recovered' })
  end
  return newest, integer(epoch)
end

-- Reads how the ids begin that the running call appends. Raises RECOVERING.
local function read_prefix()
  local newest, epoch = newest_of_journal()
  journal.prefix = newest and epoch .. '-*' or false
end

-- Takes back the entry that the running call has appended to a journal that lacks what the caller has
-- seen, and raises RECOVERING. Redis does not give its number again, so the numbers would soon pass
-- those that were lost. Therefore `recovering` makes the journal reject all changes from now on.
-- Needs XADD and XDEL.
local function reject_appended(version, entry)
  redis.call('XDEL', journal.key, version)
  local lost = journal.epoch .. '-' .. integer(journal.number)
  local recovering = table.concat({ 'recovering', lost, entry }, ' ')
  redis.call('XADD', journal.key, integer(journal.epoch + 1) .. '-0', 'c', recovering)
  reject_lost()
end

-- Appends the first change of a call to the epoch that the caller has seen, and returns its version.
-- If the number is greater than the caller has seen, the journal lacks nothing that the caller has
-- seen, and is not being recovered: so it need not be read. (Redis loses the newest entries, and
-- their numbers with them.) An error says that the journal has a later epoch, or else returns below.
-- Raises RECOVERING. Needs XADD, XDEL and XREVRANGE.
local function append_first(entry)
  local prefix = journal.epoch .. '-*'
  local version = redis.pcall('XADD', journal.key, 'NOMKSTREAM', prefix, 'c', entry)
  if not version then
    reject_lost()
  elseif type(version) == 'table' then
    read_prefix()
    return redis.call('XADD', journal.key, journal.prefix, 'c', entry)
  elseif tonumber(string.sub(version, #prefix)) <= journal.number then
    reject_appended(version, entry)
  end
  journal.prefix = prefix
  return version
end

-- Appends a change to the journal of the running call. A function calls it after its checks and
-- before its first write of state. Raises RECOVERING. Needs XADD, XDEL and XREVRANGE.
local function append_change(...)
  -- A caller that has seen the number 0 may have seen `recovering`.
  if journal.prefix == nil and journal.number == 0 then
    read_prefix()
  end
  if journal.prefix == false then
    return
  end
  journal.entry = table.concat({ ... }, ' ')
  if journal.prefix then
    journal.version = redis.call('XADD', journal.key, journal.prefix, 'c', journal.entry)
  else
    journal.version = append_first(journal.entry)
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
    local key, last = #keys, #args
    local waits = args[last] == '1'
    journal = { key = keys[key], epoch = args[last - 2], number = tonumber(args[last - 1]) }
    keys[key], args[last - 2], args[last - 1], args[last] = nil, nil, nil, nil
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
