-- What the functions of every service share: a partition's clock, and how numbers are written.
-- Stands before each library's own text; knows no key names.

-- 2024-01-01T00:00:00Z in milliseconds since the Unix epoch.
local EPOCH_MS = 1704067200000

-- Returns an integer below 2^53 as decimal digits; Lua's own way turns long ones into 1e+15.
local function integer(number)
  return string.format('%.0f', number)
end

-- Returns the server's time in milliseconds since the epoch of stamps.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - EPOCH_MS
end

-- Issues `count` stamps of a partition, each greater than all before, as decimal digits.
--
-- The clock key holds the last tick that was used; a tick is a quarter of a millisecond. Ticks
-- follow the time, but never go back: in a burst, or when the machine's clock jumps back, they
-- go on from the last one. Needs GET, SET and TIME.
local function issue(clock, partition, count)
  local last = tonumber(redis.call('GET', clock) or -1)
  local first = math.max(now_ms() * 4, last + 1)
  redis.call('SET', clock, integer(first + count - 1))
  local stamps = {}
  for i = 1, count do
    local tick = first + i - 1
    -- 41 bits of milliseconds, 10 of partition, 2 of sequence.
    stamps[i] = integer(math.floor(tick / 4) * 4096 + partition * 4 + tick % 4)
  end
  return stamps
end

