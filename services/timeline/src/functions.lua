-- The atomic steps of the timeline service. A user's timelines, all in the user's partition, and
-- streams of what is to be done to home timelines. Nothing here knows what a record says, but that
-- it begins with its post's id.
--
-- A user timeline: a head of 16 bytes, then records of 16 bytes, in the order of their posts. Of the
-- head, the first byte is a state, see below; the next seven are none of a post's id; four say when
-- the author was last found to have too many followers to push to, in seconds since 2024.
--
-- A home timeline: a head, and a ring of records of 20 bytes in the order in which they came. The
-- string is as long as its ring may grow before it is moved to a longer one. The head's 40 bytes:
--
--    0  1  format, 1; a timeline of any other is dropped, to be built again when it is read
--    1  1  whether it was ever built: 0 or 1
--    2  2  where the next record goes
--    4  2  how many records there are
--    6  4  how many came since the edition began
--   10  4  when it was last known to be read, in hours since 1970
--   14  2  nothing
--   16  8  edition: what is replaced in one step gets the next one
--   24  8  the version of the newest follow that it reflects
--   32  4  since when it is being built, in seconds since 2024; 0 if it is not
--   36  4  when it was last built from nothing, likewise

local USER_HEAD, USER_RECORD = 16, 16
local HOME_FORMAT, HOME_HEAD, HOME_RECORD = 1, 40, 20

-- An author whose posts are fetched.
local PULL = 8

-- How many of an author's posts are kept, and how many more there may be until they are cut.
local USER_MAX, USER_SLACK = 1000, 250
local HOME_MAX = 800

-- How an author's posts reach followers: by push; by both while pull begins; by pull.
local PUSHED, CROSSING, PULLED = 0, 1, 2

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

-- Returns the time in whole seconds since 2024.
local function now_seconds()
  return math.floor(now_ms() / 1000)
end
