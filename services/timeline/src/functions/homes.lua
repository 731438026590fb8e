-- Cached home timelines: push, build lease and replacement.

-- The sizes of a ring in records. With the head and Redis' overhead, each fills a size class of the
-- allocator.
local RING_SIZES = { 10, 22, 48, 99, 202, 406, HOME_MAX }
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

-- Returns the `count` newest records of a home timeline.
local function newest_records(home, next, count)
  local first = (next - count) % HOME_MAX
  local records = redis.call('GETRANGE', home, OFFSETS[first],
    HOME_HEAD + (first + count) * HOME_RECORD - 1)
  if first + count > HOME_MAX then
    -- They continue at the beginning of the ring.
    records = records .. redis.call('GETRANGE', home, OFFSETS[0], HOME_HEAD + next * HOME_RECORD - 1)
  end
  return records
end

-- Writes records into a ring from a position on, which may be negative: then they begin at the end.
local function write_records(home, position, records)
  position = position % HOME_MAX
  local room = (HOME_MAX - position) * HOME_RECORD
  if #records > room then
    redis.call('SETRANGE', home, OFFSETS[0], string.sub(records, room + 1))
    records = string.sub(records, 1, room)
  end
  redis.call('SETRANGE', home, OFFSETS[position], records)
end

-- Returns how many records of a home timeline are newer than a post, and whether it has the post. Binary
-- search: a read of the whole ring takes twice as long.
local function search(home, next, count, post)
  local function nth_newest(n)
    local at = HOME_HEAD + (next - 1 - n) % HOME_MAX * HOME_RECORD
    return post_at(redis.call('GETRANGE', home, at, at + 6), 1)
  end
  -- Most are late by a few places: doubles the distance before it halves it.
  local newer, limit = 0, 1
  while limit < count and nth_newest(limit - 1) > post do
    newer, limit = limit, limit * 2
  end
  limit = math.min(limit, count)
  while newer < limit do
    local middle = math.floor((newer + limit) / 2)
    if nth_newest(middle) > post then
      newer = middle + 1
    else
      limit = middle
    end
  end
  return newer, newer < count and nth_newest(newer) == post
end

-- Makes room for one more record after so many.
local function grow(home, count)
  local timeline = redis.call('GET', home)
  local records = string.sub(timeline, HOME_HEAD + 1, HOME_HEAD + count * HOME_RECORD)
  redis.call('SET', home, with_room(string.sub(timeline, 1, HOME_HEAD), records), 'KEEPTTL')
end

-- Pushes a record into a home timeline if it exists and does not have the post. Returns whether it was
-- written.
--
-- Nearly always, the post is newer than all others, and the record takes the place of the oldest one or
-- an empty one. Else the newer records move to make room for it.
local function push_one(home, record, post)
  local head = redis.call('GETRANGE', home, '0', '47')
  if head == '' then
    return false
  elseif not is_home(head) then
    redis.call('DEL', home)
    return false
  end
  local next, count, kept, newest = struct.unpack('<I2I2I4I8', head, 3)
  local newer, records = 0, record
  if post <= newest then
    local is_there
    newer, is_there = search(home, next, count, post)
    if is_there or newer == HOME_MAX then
      -- A replacement may lack the post and reach further down. Then it keeps the post and the newer
      -- ones.
      local keep = math.min(newer + 1, HOME_MAX)
      if kept < keep then
        redis.call('SETRANGE', home, '6', struct.pack('<I4', keep))
      end
      return false
    end
    records = record .. newest_records(home, next, newer)
  end
  if IS_GROWABLE[count] then
    grow(home, count)
  end
  write_records(home, next - newer, records)
  next = (next + 1) % HOME_MAX
  count = math.min(count + 1, HOME_MAX)
  kept, newest = math.max(kept, newer) + 1, math.max(newest, post)
  redis.call('SETRANGE', home, '2', struct.pack('<I2I2I4I8', next, count, kept, newest))
  return true
end

-- Pushes a post into home timelines.
--
-- KEYS: home timelines. ARGV: record.
-- Returns the number of writes.
local function push(keys, args)
  local record, written = args[1], 0
  local post = post_at(record, 1)
  for _, home in ipairs(keys) do
    if push_one(home, record, post) then
      written = written + 1
    end
  end
  return written
end

-- Returns the next edition. Editions derive from the time, in thousandths of milliseconds since
-- 2006, so they stay unique after the timeline was deleted.
local function next_edition(edition)
  return math.max(edition + 1, now_ms() * 1000)
end

-- Starts the next edition of a home timeline and returns it.
local function begin_edition(home, edition)
  edition = next_edition(edition)
  redis.call('SETRANGE', home, 6, struct.pack('<I4', 0))
  redis.call('SETRANGE', home, 24, struct.pack('<I8', edition))
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
      if struct.unpack('<I4', head, 41) > 0 then
        begin_edition(home, struct.unpack('<I8', head, 25))
        redis.call('SETRANGE', home, 40, struct.pack('<I4', 0))
      end
    end
  end
  return added
end

-- Returns the time until which posts may not be pushed, in milliseconds since 2006; 0 if there is none.
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
    head = struct.pack('<BBI2I2I4I8I4I2I8I8I4I4', HOME_FORMAT, 0, 0, 0, 0, 0, tonumber(args[2]), 0,
      edition, 0, now, 0)
    redis.call('SET', home, with_room(head, ''), 'EX', args[3])
    redis.call('DEL', keys[2])
    return edition
  end
  local was_built = string.byte(head, 2) == 1
  local edition, _, since = struct.unpack('<I8I8I4', head, 25)
  if was_built and edition ~= tonumber(args[4]) then
    return EDITION_CHANGED
  elseif since > 0 and since <= now and now - since < tonumber(args[1]) then
    return HELD
  end
  redis.call('SETRANGE', home, 40, struct.pack('<I4', now))
  return begin_edition(home, edition)
end

-- Replaces the content of a home timeline, but keeps the records pushed since the edition began.
--
-- KEYS: home timeline, pulls. ARGV: edition, version, hours since 1970, TTL in seconds, records in the
-- order of posts, pulled authors, 1 for a rebuild without the existing content.
-- Returns 0 if the timeline has another edition or does not exist, else 1.
local function replace(keys, args)
  local home, pulls = keys[1], keys[2]
  local old = redis.call('GETRANGE', home, 0, HOME_HEAD - 1)
  if old == '' or not is_home(old) then
    return 0
  end
  local next, count, kept = struct.unpack('<I2I2I4', old, 3)
  local edition, _, _, built = struct.unpack('<I8I8I4I4', old, 25)
  if edition ~= tonumber(args[1]) then
    return 0
  elseif args[7] == '1' then
    built = now_seconds()
  end
  kept = math.min(kept, count)
  local recent = newest_records(home, next, kept)
  local records = merge(args[5], recent, HOME_RECORD)
  records = string.sub(records, -HOME_MAX * HOME_RECORD)
  count = #records / HOME_RECORD
  local newest = count > 0 and post_at(records, #records - HOME_RECORD + 1) or 0
  local head = struct.pack('<BBI2I2I4I8I4I2I8I8I4I4', HOME_FORMAT, 1, count % HOME_MAX, count, 0,
    newest, tonumber(args[3]), 0, next_edition(edition), tonumber(args[2]), 0, built)
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
    redis.call('SETRANGE', keys[1], 18, struct.pack('<I4', tonumber(args[1])))
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
