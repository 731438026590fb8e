-- The Redis functions of the timeline service: user timelines, home timelines and fan-out streams.
-- All keys of a user are in the user's partition. The functions do not decode records, except the
-- post id at their beginning.
--
-- User timeline: a head of 16 bytes, then records of 16 bytes in the order of posts. Head: byte 0
-- is the fan-out state; bytes 1 to 4 are the time of the last start of a switch to fan-out on read,
-- in seconds since 2006; byte 7 makes sure that no post id matches; bytes 8 to 15 are the post down
-- to which the post service has no other posts: 0 if it has none at all, above all
-- posts in a new timeline, which has only posts that were delivered since.
--
-- Home timeline: a head of 48 bytes, then a ring of records of 20 bytes. The string has the full size
-- of the ring, which grows in steps.
--
-- Invariant: the records are in the order of posts, each once, from the oldest, which is the next to be
-- overwritten in a full ring. A post that was pushed is among them, unless a full ring has only newer
-- ones. So a repeated or late push neither evicts a newer post nor makes a hole. Head:
--
--   offset  size  content
--    0       1    format, 2; a timeline of another format is deleted and rebuilt at the next read
--    1       1    whether the first build is complete: 0 or 1
--    2       2    ring position of the next record
--    4       2    number of records
--    6       4    number of newest records that a replacement keeps: at least all that were pushed since
--                 the edition began
--   10       8    newest post; 0 if there is none
--   18       4    time of the last recorded read, in hours since 1970
--   22       2    unused
--   24       8    edition: changes with each replacement
--   32       8    version of the newest follow that it reflects
--   40       4    start of the build lease, in seconds since 2006; 0 without a lease
--   44       4    time of the last rebuild, in seconds since 2006

local USER_HEAD, USER_RECORD = 16, 16
local HOME_FORMAT, HOME_HEAD, HOME_RECORD = 2, 48, 20

-- The size of a pulled author's id.
local PULL = 8

-- The length of a user timeline, and how far it may grow before it is trimmed.
local USER_MAX, USER_SLACK = 1000, 250
local HOME_MAX = 800

-- Fan-out states of an author.
local ON_WRITE, SWITCHING, ON_READ = 0, 1, 2

-- Returns whether a timeline has a record that begins with these 8 bytes.
local function has(timeline, head, width, post)
  local at = string.find(timeline, post, head + 1, true)
  while at do
    if (at - 1 - head) % width == 0 then
      return true
    end
    at = string.find(timeline, post, at + 1, true)
  end
  return false
end

-- Returns the post of the record at an index: the lower 53 bits of its first 8 bytes.
local function post_at(records, at)
  local low, high = struct.unpack('<I4I3', records, at)
  return low + (high % 2 ^ 21) * 2 ^ 32
end

-- Merges records in the order of posts; those of both once. Of the first ones, looks only at those that
-- are not older than all of the second ones.
local function merge(ours, theirs, width)
  local i, j = #ours + 1, 1
  local oldest = theirs ~= '' and post_at(theirs, 1)
  while oldest and i > 1 and post_at(ours, i - width) >= oldest do
    i = i - width
  end
  local merged = { string.sub(ours, 1, i - 1) }
  while i <= #ours and j <= #theirs do
    local one, other = post_at(ours, i), post_at(theirs, j)
    if one <= other then
      merged[#merged + 1] = string.sub(ours, i, i + width - 1)
      i = i + width
    else
      merged[#merged + 1] = string.sub(theirs, j, j + width - 1)
    end
    if other <= one then
      j = j + width
    end
  end
  return table.concat(merged) .. string.sub(ours, i) .. string.sub(theirs, j)
end

-- Returns the time in seconds since 2006.
local function now_seconds()
  return math.floor(now_ms() / 1000)
end
