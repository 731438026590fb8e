-- The id generator: the clock of a partition, which issues stamps, even if the clock of the server goes
-- back, and its repair.

-- 2024-01-01T00:00:00Z in milliseconds since the Unix epoch.
local EPOCH_MS = 1704067200000

-- Returns the server's time since the epoch of stamps, in ticks of a quarter of a millisecond. Needs
-- TIME.
local function now_ticks()
  local time = redis.call('TIME')
  return (tonumber(time[1]) * 1000 - EPOCH_MS) * 4 + math.floor(tonumber(time[2]) / 250)
end

-- Returns the server's time since the epoch of stamps, in milliseconds.
local function now_ms()
  return math.floor(now_ticks() / 4)
end

-- Returns the stamp of a tick and a partition: 41 bits of milliseconds, 10 of partition, 2 of sequence.
local function stamp_at(tick, partition)
  return math.floor(tick / 4) * 4096 + partition * 4 + tick % 4
end

-- A partition's clock. Its key holds the last tick that was used, in decimal digits. Ticks follow the
-- time, but never go back: in a burst, or when the machine's clock jumps back, they go on from the
-- last one.
--
-- No tick is issued that is more than five minutes ahead of Redis' clock or of the caller's
-- (CLOCK_AHEAD). If both were wrong and came back, the partition issues nothing until its clock is
-- set back (`repair_clock`). The ticks that were used ahead must not be issued again: they are in
-- `ahead`, and are skipped when the time comes to them. To know them, `rests` has between which ticks
-- none was issued for an hour or longer, and before which none was at all: a jump of the clocks is
-- such a rest.
--
-- What must hold: no tick is issued twice; each tick that was issued is at most the clock's, or in
-- `ahead`. A leading 0 of the clock says that there is an `ahead`. Both further keys are the clock's
-- own, named after it, in its slot, and read or written on these rare occasions alone. Both are pairs
-- of ticks: `ahead` the first and the last ones that were used, in ascending order, `rests` the ticks
-- before and after.
local AHEAD_MAX = 5 * 60 * 4000
local REST_MIN = 60 * 60 * 4000
local RESTS_MAX = 16
local JUMPS_MAX = 16
-- Stamps have 41 bits of milliseconds.
local TICK_MAX = 2 ^ 43 - 1

-- Parses a list of numbers.
local function numbers_of(text)
  local numbers = {}
  for digits in string.gmatch(text or '', '%d+') do
    numbers[#numbers + 1] = tonumber(digits)
  end
  return numbers
end

-- Formats a list of numbers, and keeps the last `max`.
local function text_of(numbers, max)
  local texts = {}
  for i = math.max(1, #numbers - max + 1), #numbers do
    texts[#texts + 1] = integer(numbers[i])
  end
  return table.concat(texts, ';')
end

-- Returns the partition and the tick up to which it may issue: `issuer` is the caller's time in
-- milliseconds since the Unix epoch times 1,024, plus the partition, and `now` is Redis' tick.
local function issuer_of(issuer, now)
  local partition = issuer % 1024
  local callers = ((issuer - partition) / 1024 - EPOCH_MS) * 4
  return partition, math.min(now + AHEAD_MAX, callers + AHEAD_MAX, TICK_MAX)
end

-- Returns where `count` ticks from `first` on go, behind those of `ahead` that they meet, and how far
-- ticks may be issued then: it takes the time as long to pass what is skipped as it took to use it.
local function skip(ahead, first, count, limit)
  for i = 1, #ahead, 2 do
    if limit >= ahead[i] then
      limit = math.min(math.max(limit, ahead[i + 1] + AHEAD_MAX), TICK_MAX)
    end
    if first + count > ahead[i] and first <= ahead[i + 1] then
      first = ahead[i + 1] + 1
    end
  end
  return first, limit
end

-- Finds the ticks of the next `count` stamps. Writes nothing. Raises CLOCK_AHEAD. `newest_ahead` is the
-- last stamp that was issued ahead, nil if the time is behind none of these. Needs GET and TIME.
local function prepare(clock, issuer, count)
  local now = now_ms() * 4
  local partition, limit = issuer_of(issuer, now)
  local value = redis.call('GET', clock)
  local last, newest_ahead = tonumber(value or 0), nil
  local first = math.max(now, last + 1)
  if value and string.sub(value, 1, 1) == '0' then
    local ahead = numbers_of(redis.call('GET', clock .. ':ahead'))
    if #ahead > 0 and limit - AHEAD_MAX <= ahead[#ahead] then
      newest_ahead = stamp_at(ahead[#ahead], partition)
    end
    first, limit = skip(ahead, first, count, limit)
  end
  if first + count - 1 > limit then
    error({ err = 'CLOCK_AHEAD the clock of partition ' .. partition .. ' is ahead of the time' })
  end
  return { clock = clock, partition = partition, last = last, first = first, count = count,
    newest_ahead = newest_ahead }
end

-- Issues the stamps that were prepared, each greater than all before, as decimal digits. Needs GET,
-- SET.
local function issue_prepared(prepared)
  local clock, last, first = prepared.clock, prepared.last, prepared.first
  if first - last > REST_MIN then
    local rests = numbers_of(redis.call('GET', clock .. ':rests'))
    rests[#rests + 1], rests[#rests + 2] = last, first
    redis.call('SET', clock .. ':rests', text_of(rests, 2 * RESTS_MAX))
  end
  local now = integer(first + prepared.count - 1)
  redis.call('SET', clock, prepared.newest_ahead and '0' .. now or now)
  local stamps = {}
  for i = 1, prepared.count do
    stamps[i] = integer(stamp_at(first + i - 1, prepared.partition))
  end
  return stamps
end

-- Advances a partition's clock to a stamp that was issued, so that later ones are greater. A service
-- registers it. Needs GET and SET.
--
-- KEYS: clock. ARGV: stamp.
local function raise_clock(keys, args)
  local value, stamp = redis.call('GET', keys[1]) or '0', tonumber(args[1])
  local tick = math.floor(stamp / 4096) * 4 + stamp % 4
  if tick > tonumber(value) then
    local has_ahead = #value > 1 and string.sub(value, 1, 1) == '0'
    redis.call('SET', keys[1], (has_ahead and '0' or '') .. integer(tick))
  end
  return 0
end

-- Returns a stamp of the server's time in the partition of an id. It may not be unique. Needs TIME.
local function now_stamp(id)
  return integer(stamp_at(now_ticks(), math.floor(tonumber(id) / 4) % 1024))
end

-- Prepares and issues `count` stamps of a partition.
local function issue(clock, issuer, count)
  return issue_prepared(prepare(clock, issuer, count))
end

-- Returns `ahead` with one more pair, and without those that are not above `before`. Pairs of which
-- one begins within the other become one.
local function with_pair(ahead, before, from, to)
  local pairs_above = { { from, to } }
  for i = 1, #ahead, 2 do
    if ahead[i + 1] > before then
      pairs_above[#pairs_above + 1] = { ahead[i], ahead[i + 1] }
    end
  end
  table.sort(pairs_above, function(a, b) return a[1] < b[1] end)
  local numbers = {}
  for _, pair in ipairs(pairs_above) do
    if #numbers > 0 and pair[1] <= numbers[#numbers] + 1 then
      numbers[#numbers] = math.max(numbers[#numbers], pair[2])
    else
      numbers[#numbers + 1], numbers[#numbers + 2] = pair[1], pair[2]
    end
  end
  return numbers
end

-- Sets a partition's clock back that is ahead, to before the rest at whose end it jumped. A service
-- registers it. Needs GET, SET and TIME.
--
-- KEYS: clock. ARGV: issuer.
-- Returns by how many seconds: 0 if it is not ahead; -1 if it is not known where it jumped, since it
-- jumped by less than an hour, or rested or jumped too often since: then only time mends it.
local function repair_clock(keys, args)
  local clock = keys[1]
  local _, limit = issuer_of(tonumber(args[1]), now_ms() * 4)
  local value = redis.call('GET', clock) or '1'
  local last, allowed = tonumber(value), limit
  local ahead = numbers_of(redis.call('GET', clock .. ':ahead'))
  if string.sub(value, 1, 1) == '0' then
    local _
    _, allowed = skip(ahead, last + 1, 1, limit)
  end
  if last <= allowed then
    return 0
  end
  local rests = numbers_of(redis.call('GET', clock .. ':rests'))
  for i = 1, #rests, 2 do
    local before, from = rests[i], rests[i + 1]
    if from > limit and before <= limit then
      local used = with_pair(ahead, before, from, last)
      if #used > 2 * JUMPS_MAX then
        return -1
      end
      redis.call('SET', clock .. ':ahead', text_of(used, #used))
      redis.call('SET', clock .. ':rests', text_of({ unpack(rests, 1, i - 1) }, 2 * RESTS_MAX))
      redis.call('SET', clock, '0' .. integer(before))
      return math.ceil((last - limit + AHEAD_MAX) / 4000)
    end
  end
  return -1
end
