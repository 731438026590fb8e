-- Cached home timelines: push, build lease and replacement.

-- The sizes of a ring in records. With the head and Redis' overhead, each fills a size class of the
-- allocator.
local RING_SIZES = { 10, 23, 48, 100, 202, 407, HOME_MAX }
local IS_GROWABLE = {}
for i = 1, #RING_SIZES - 1 do
  IS_GROWABLE[RING_SIZES[i]] = true
end

-- The offset of each record of a ring. Offsets on the push path are strings: formatting numbers
-- takes Redis a tenth of the time of a push.
local OFFSETS = {}
for i = 0, HOME_MAX - 1 do
  OFFSETS[i] = '' .. (HOME_HEAD + i * HOME_RECORD)
end

-- Returns a head and records as a home timeline with room for one more record.
local function with_room(head, records)
  local count = #records / HOME_RECORD
  for _, room in ipairs(RING_SIZES) do
    if count < room or room == HOME_MAX then
      return head .. records .. string.rep('\0', (room - count) * HOME_RECORD)
    end
  end
end

-- Returns whether a string begins with a valid home timeline head.
local function is_home(head)
  return string.byte(head) == HOME_FORMAT and #head >= HOME_HEAD
end

-- Pushes a record into a home timeline if it exists; with `once`, only if the timeline does not
-- have the post. Returns whether it was written.
local function push_one(home, record, once)
  local head = redis.call('GETRANGE', home, '0', '39')
  if head == '' then
    return false
  elseif not is_home(head) then
    redis.call('DEL', home)
    return false
  end
  if once and has(redis.call('GET', home), HOME_HEAD, HOME_RECORD, string.sub(record, 1, 8)) then
    return false
  end
  local next, count, came = struct.unpack('<I2I2I4', head, 3)
  if IS_GROWABLE[count] then
    local timeline = redis.call('GET', home)
    local records = string.sub(timeline, HOME_HEAD + 1, HOME_HEAD + count * HOME_RECORD)
    redis.call('SET', home, with_room(string.sub(timeline, 1, HOME_HEAD), records), 'KEEPTTL')
  end
  redis.call('SETRANGE', home, OFFSETS[next], record)
  next = (next + 1) % HOME_MAX
  count = math.min(count + 1, HOME_MAX)
  redis.call('SETRANGE', home, '2', struct.pack('<I2I2I4', next, count, came + 1))
  return true
end

-- Pushes a post into home timelines.
--
-- KEYS: home timelines. ARGV: record, 1 to check for duplicates.
-- Returns the number of writes.
local function push(keys, args)
  local written = 0
  for _, home in ipairs(keys) do
    if push_one(home, args[1], args[2] == '1') then
      written = written + 1
    end
  end
  return written
end

-- Returns the next edition. Editions derive from the time, in thousandths of milliseconds since
-- 2024, so they stay unique after the timeline was deleted.
local function next_edition(edition)
  return math.max(edition + 1, now_ms() * 1000)
end

-- Starts the next edition of a home timeline and returns it.
local function begin_edition(home, edition)
  edition = next_edition(edition)
  redis.call('SETRANGE', home, 6, struct.pack('<I4', 0))
  redis.call('SETRANGE', home, 16, struct.pack('<I8', edition))
  return edition
end

-- Adds an author to the pulled authors of existing home timelines. Revokes a build lease: the
-- builder may have read the author's old state.
--
-- KEYS: home timeline, pulls, home timeline, pulls, … ARGV: author (8 bytes), TTL in seconds.
-- Returns the number of additions.
local function add_pulled_author(keys, args)
  local added = 0
  for i = 1, #keys, 2 do
    local home, pulls = keys[i], keys[i + 1]
    local head = redis.call('GETRANGE', home, 0, HOME_HEAD - 1)
    if is_home(head) then
      local authors = redis.call('GET', pulls) or ''
      if not has(authors, 0, PULL, args[1]) then
        redis.call('SET', pulls, authors .. args[1], 'EX', args[2])
        added = added + 1
      end
      if struct.unpack('<I4', head, 33) > 0 then
        begin_edition(home, struct.unpack('<I8', head, 17))
        redis.call('SETRANGE', home, 32, struct.pack('<I4', 0))
      end
    end
  end
  return added
end

-- Returns the time until which posts may not be pushed, in milliseconds since 2024; 0 if there is none.
-- A time that is ahead by more than `most` milliseconds was recorded while a clock was ahead. It is set
-- back to that: home timelines are rebuilt at each read until then. Not further, since posts may not be
-- pushed for as long if they are delivered right now.
local function unpushed_until(unpushed, most)
  local known, limit = tonumber(redis.call('GET', unpushed)) or 0, now_ms() + most
  if known > limit then
    redis.call('SET', unpushed, integer(limit), 'KEEPTTL')
  end
  return math.min(known, limit)
end

-- Results of `begin_build` besides an edition.
local HELD, EDITION_CHANGED = 0, -1

-- Acquires the lease to build a home timeline. Creates the key, so that concurrent posts are pushed
-- to it.
--
-- KEYS: home timeline, pulls, unpushed. ARGV: lease time in seconds, hours since 1970, TTL in seconds,
-- edition to replace (0: only if it was never built), the most milliseconds that posts are not pushed.
-- Returns the edition to replace; HELD if another builder has the lease; EDITION_CHANGED if the
-- timeline has another edition.
local function begin_build(keys, args)
  local home, now = keys[1], now_seconds()
  unpushed_until(keys[3], tonumber(args[5]))
  local head = redis.call('GETRANGE', home, 0, HOME_HEAD - 1)
  if not is_home(head) then
    local edition = next_edition(0)
    head = struct.pack('<BBI2I2I4I4I2I8I8I4I4', HOME_FORMAT, 0, 0, 0, 0, tonumber(args[2]), 0,
      edition, 0, now, 0)
    redis.call('SET', home, with_room(head, ''), 'EX', args[3])
    redis.call('DEL', keys[2])
    return edition
  end
  local was_built = string.byte(head, 2) == 1
  local edition, _, since = struct.unpack('<I8I8I4', head, 17)
  if was_built and edition ~= tonumber(args[4]) then
    return EDITION_CHANGED
  elseif since > 0 and since <= now and now - since < tonumber(args[1]) then
    return HELD
  end
  redis.call('SETRANGE', home, 32, struct.pack('<I4', now))
  return begin_edition(home, edition)
end

-- Replaces the content of a home timeline, but keeps the records pushed since the edition began.
--
-- KEYS: home timeline, pulls. ARGV: edition, version, hours since 1970, TTL in seconds, records
-- oldest first, pulled authors, 1 for a rebuild without the existing content.
-- Returns 0 if the timeline has another edition or does not exist, else 1.
local function replace(keys, args)
  local home, pulls = keys[1], keys[2]
  local timeline = redis.call('GET', home)
  if not timeline or not is_home(timeline) then
    return 0
  end
  local next, count, came = struct.unpack('<I2I2I4', timeline, 3)
  local edition, _, _, built = struct.unpack('<I8I8I4I4', timeline, 17)
  if edition ~= tonumber(args[1]) then
    return 0
  elseif args[7] == '1' then
    built = now_seconds()
  end
  local since = math.min(came, count)
  local ring = string.sub(timeline, HOME_HEAD + 1)
  local recent = string.sub(ring, math.max(next - since, 0) * HOME_RECORD + 1, next * HOME_RECORD)
  if since > next then
    -- The ring is full, and the older ones of them are at its end.
    recent = string.sub(ring, (HOME_MAX + next - since) * HOME_RECORD + 1) .. recent
  end
  local records = string.sub(args[5] .. recent, -HOME_MAX * HOME_RECORD)
  count = #records / HOME_RECORD
  local head = struct.pack('<BBI2I2I4I4I2I8I8I4I4', HOME_FORMAT, 1, count % HOME_MAX, count, 0,
    tonumber(args[3]), 0, next_edition(edition), tonumber(args[2]), 0, built)
  redis.call('SET', home, with_room(head, records), 'EX', args[4])
  redis.call('DEL', pulls)
  if args[6] ~= '' then
    redis.call('SET', pulls, args[6], 'EX', args[4])
  end
  return 1
end

-- Records a read and extends the lifetime.
--
-- KEYS: home timeline, pulls. ARGV: hours since 1970, TTL in seconds.
local function touch(keys, args)
  if redis.call('EXPIRE', keys[1], args[2]) == 1 then
    redis.call('SETRANGE', keys[1], 10, struct.pack('<I4', tonumber(args[1])))
    redis.call('EXPIRE', keys[2], args[2])
  end
end

-- Records the time until which posts may not be pushed.
--
-- KEYS: unpushed. ARGV: milliseconds from now, the most of them, TTL in seconds.
local function record_unpushed(keys, args)
  local known = unpushed_until(keys[1], tonumber(args[2]))
  local until_ms = math.max(known, now_ms() + tonumber(args[1]))
  redis.call('SET', keys[1], integer(until_ms), 'EX', args[3])
end

register('tl_push', push)
register('tl_add_pulled_author', add_pulled_author)
register('tl_begin_build', begin_build)
register('tl_replace', replace, 'allow-oom')
register('tl_touch', touch, 'allow-oom')
register('tl_record_unpushed', record_unpushed, 'allow-oom')
