-- Home timelines: written into, built, replaced.

-- The lengths that a ring may have: with its head and what Redis adds, each fills a size of its
-- allocator.
local ROOMS = { 10, 23, 48, 100, 202, 407, HOME_MAX }
local IS_SHORT_ROOM = {}
for i = 1, #ROOMS - 1 do
  IS_SHORT_ROOM[ROOMS[i]] = true
end

-- Where each record of a ring begins. As texts, like all places in commands on the way of posts to
-- followers: Redis takes a tenth of a delivery's time to write a number.
local PLACES = {}
for i = 0, HOME_MAX - 1 do
  PLACES[i] = '' .. (HOME_HEAD + i * HOME_RECORD)
end

-- Returns a home timeline's head and records in a ring that has room for one more.
local function in_room(head, records)
  local count = #records / HOME_RECORD
  for _, room in ipairs(ROOMS) do
    if count < room or room == HOME_MAX then
      return head .. records .. string.rep('\0', (room - count) * HOME_RECORD)
    end
  end
end

-- Returns whether a home timeline begins with this.
local function is_home(head)
  return string.byte(head) == HOME_FORMAT and #head >= HOME_HEAD
end

-- Writes a record into a home timeline, if there is one. With `once`, only if the timeline does not
-- have it.
-- Returns whether it was written.
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
  if IS_SHORT_ROOM[count] then
    local timeline = redis.call('GET', home)
    local records = string.sub(timeline, HOME_HEAD + 1, HOME_HEAD + count * HOME_RECORD)
    redis.call('SET', home, in_room(string.sub(timeline, 1, HOME_HEAD), records), 'KEEPTTL')
  end
  redis.call('SETRANGE', home, PLACES[next], record)
  next = (next + 1) % HOME_MAX
  count = math.min(count + 1, HOME_MAX)
  redis.call('SETRANGE', home, '2', struct.pack('<I2I2I4', next, count, came + 1))
  return true
end

-- Writes a post into home timelines.
--
-- KEYS: home timelines. ARGV: the record, 1 to write it only where it is not there already.
-- Returns into how many it was written.
local function push(keys, args)
  local written = 0
  for _, home in ipairs(keys) do
    if push_one(home, args[1], args[2] == '1') then
      written = written + 1
    end
  end
  return written
end

-- Returns the edition that follows: it tells the time, in milliseconds since 2024 and thousandths of
-- them, so that no two timelines of a user have one in common, either.
local function next_edition(edition)
  return math.max(edition + 1, now_ms() * 1000)
end

-- Begins an edition of a home timeline. Returns it.
local function begin_edition(home, edition)
  edition = next_edition(edition)
  redis.call('SETRANGE', home, 6, struct.pack('<I4', 0))
  redis.call('SETRANGE', home, 16, struct.pack('<I8', edition))
  return edition
end

-- Adds an author to those whose posts are fetched, where there is a home timeline. Whoever is
-- building one has to begin again: it may be with an author who was pushed then.
--
-- KEYS: home timeline, pulls, home timeline, pulls, … ARGV: author (8 bytes), lifetime in seconds.
-- Returns to how many it was added.
local function pull(keys, args)
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

-- What `begin` answers instead of an edition.
local BEING_BUILT, CHANGED = 0, -1

-- Lets one reader build a home timeline; from then on it is there, and posts are pushed into it.
--
-- KEYS: home timeline, pulls. ARGV: after how many seconds a builder counts as dead, hours since
-- 1970, lifetime in seconds, the edition that is to be replaced (0: only what was never built).
-- Returns the edition to replace; or BEING_BUILT by somebody else; or CHANGED, where there is another
-- edition.
local function begin(keys, args)
  local home, now = keys[1], now_seconds()
  local head = redis.call('GETRANGE', home, 0, HOME_HEAD - 1)
  if not is_home(head) then
    local edition = next_edition(0)
    head = struct.pack('<BBI2I2I4I4I2I8I8I4I4', HOME_FORMAT, 0, 0, 0, 0, tonumber(args[2]), 0,
      edition, 0, now, 0)
    redis.call('SET', home, in_room(head, ''), 'EX', args[3])
    redis.call('DEL', keys[2])
    return edition
  end
  local was_built = string.byte(head, 2) == 1
  local edition, _, since = struct.unpack('<I8I8I4', head, 17)
  if was_built and edition ~= tonumber(args[4]) then
    return CHANGED
  elseif since > 0 and since <= now and now - since < tonumber(args[1]) then
    return BEING_BUILT
  end
  redis.call('SETRANGE', home, 32, struct.pack('<I4', now))
  return begin_edition(home, edition)
end

-- Replaces what is in a home timeline, but for what came since its edition began.
--
-- KEYS: home timeline, pulls. ARGV: edition, version, hours since 1970, lifetime in seconds, the
-- records, oldest first, the authors whose posts are to be fetched, 1 where all of that was found
-- without what is there.
-- Returns whether it did: not if the timeline has another edition by now, or is gone.
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
    -- The ring is full, and the older ones of them lie at its end.
    recent = string.sub(ring, (HOME_MAX + next - since) * HOME_RECORD + 1) .. recent
  end
  local records = string.sub(args[5] .. recent, -HOME_MAX * HOME_RECORD)
  count = #records / HOME_RECORD
  local head = struct.pack('<BBI2I2I4I4I2I8I8I4I4', HOME_FORMAT, 1, count % HOME_MAX, count, 0,
    tonumber(args[3]), 0, next_edition(edition), tonumber(args[2]), 0, built)
  redis.call('SET', home, in_room(head, records), 'EX', args[4])
  redis.call('DEL', pulls)
  if args[6] ~= '' then
    redis.call('SET', pulls, args[6], 'EX', args[4])
  end
  return 1
end

-- Notes that a home timeline is read.
--
-- KEYS: home timeline, pulls. ARGV: hours since 1970, lifetime in seconds.
local function touch(keys, args)
  if redis.call('EXPIRE', keys[1], args[2]) == 1 then
    redis.call('SETRANGE', keys[1], 10, struct.pack('<I4', tonumber(args[1])))
    redis.call('EXPIRE', keys[2], args[2])
  end
end

-- Notes until when posts may not be pushed.
--
-- KEYS: unpushed. ARGV: for how many milliseconds from now, lifetime in seconds.
local function unpushed(keys, args)
  redis.call('SET', keys[1], integer(now_ms() + tonumber(args[1])), 'EX', args[2])
end

register('tl_push', push)
register('tl_pull', pull)
register('tl_begin', begin)
register('tl_replace', replace, 'allow-oom')
register('tl_touch', touch, 'allow-oom')
register('tl_unpushed', unpushed)
