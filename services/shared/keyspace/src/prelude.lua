-- What the functions of every service share: a partition's clock, how numbers are written, lists of
-- arguments, what changes of two sides leave (tombstones, and what waits to be confirmed), and
-- deleted accounts.
-- Stands before each library's own text; knows no key names.
--
-- What needs commands says which: those that a service uses, its Redis user must be allowed.

-- Registers a function under this version's name.
--
-- At `maxmemory`, Redis refuses a function without a flag before it begins (OOM), also one that frees
-- memory. `allow-oom` is for functions that free more than they take, that protect an account, and
-- that complete or record what is acknowledged already, which takes a bounded amount. Functions
-- without a flag are those by which the stored data grows.
local function register(name, callback, flag)
  redis.register_function({ function_name = name .. suffix, callback = callback, flags = { flag } })
end

-- 2024-01-01T00:00:00Z in milliseconds since the Unix epoch.
local EPOCH_MS = 1704067200000

-- Returns an integer below 2^53 as decimal digits; Lua's own way turns long ones into 1e+15.
local function integer(number)
  return string.format('%.0f', number)
end

-- Returns the server's time since the epoch of stamps, in ticks of a quarter of a millisecond. Needs
-- TIME.
local function now_ticks()
  local time = redis.call('TIME')
  return (tonumber(time[1]) * 1000 - EPOCH_MS) * 4 + math.floor(tonumber(time[2]) / 250)
end

-- Returns the same in milliseconds.
local function now_ms()
  return math.floor(now_ticks() / 4)
end

-- Returns a partition's stamp of a tick: 41 bits of milliseconds, 10 of partition, 2 of sequence.
local function stamp_at(tick, partition)
  return math.floor(tick / 4) * 4096 + partition * 4 + tick % 4
end

-- Issues `count` stamps of a partition, each greater than all before, as decimal digits.
--
-- The clock key holds the last tick that was used. Ticks follow the time, but never go back: in a
-- burst, or when the machine's clock jumps back, they go on from the last one. Needs GET, SET and
-- TIME.
local function issue(clock, partition, count)
  local last = tonumber(redis.call('GET', clock) or -1)
  local first = math.max(now_ms() * 4, last + 1)
  redis.call('SET', clock, integer(first + count - 1))
  local stamps = {}
  for i = 1, count do
    stamps[i] = integer(stamp_at(first + i - 1, partition))
  end
  return stamps
end

-- Calls a command that takes any number of arguments after its key. Needs that command.
local function call_with(command, key, arguments)
  return redis.call(command, key, unpack(arguments))
end

-- Returns those arguments that stand at `from` and after.
local function rest(args, from)
  local values = {}
  for i = from, #args do
    values[#values + 1] = args[i]
  end
  return values
end

-- Tombstones are kept for 24 hours: far longer than any message can be on its way.
local TOMBSTONE_SECONDS = 86400

-- Notes ended entries (version, member, version, member, …) in a zset of tombstones, and clears
-- away up to twice as many old ones. Versions are stamps. Needs EXPIRE, TIME, ZADD, ZRANGE, ZREM.
local function bury(tombstones, entries)
  call_with('ZADD', tombstones, entries)
  redis.call('EXPIRE', tombstones, TOMBSTONE_SECONDS)
  local cutoff = integer((now_ms() - TOMBSTONE_SECONDS * 1000) * 4096)
  local old = redis.call('ZRANGE', tombstones, '-inf', cutoff, 'BYSCORE', 'LIMIT', 0, #entries)
  if #old > 0 then
    call_with('ZREM', tombstones, old)
  end
end

-- Takes entries out of `pending`, a zset of changes by their versions, each unless it has another
-- version by now, a newer change having come in. A service registers it. Needs ZMSCORE and ZREM.
--
-- KEYS: pending. ARGV: member, version, member, version, …
-- Returns how many it took out.
local function confirm(keys, args)
  local members, done = {}, {}
  for i = 1, #args, 2 do
    members[#members + 1] = args[i]
  end
  for i, version in ipairs(call_with('ZMSCORE', keys[1], members)) do
    if version and tonumber(version) == tonumber(args[2 * i]) then
      done[#done + 1] = members[i]
    end
  end
  if #done > 0 then
    call_with('ZREM', keys[1], done)
  end
  return #done
end

-- Records that a deleted account is to be forgotten: in `forgotten` for good, and in `forgetting`,
-- with a stamp, until that is done. A service registers it. Needs SADD, ZADD and what `issue` does.
--
-- KEYS: clock, forgotten, forgetting. ARGV: partition, account.
local function forget(keys, args)
  local clock, forgotten, forgetting = keys[1], keys[2], keys[3]
  if redis.call('SADD', forgotten, args[2]) == 1 then
    redis.call('ZADD', forgetting, issue(clock, tonumber(args[1]), 1)[1], args[2])
  end
end
