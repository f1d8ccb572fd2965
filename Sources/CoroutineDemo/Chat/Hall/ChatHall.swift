#if Demo
/// The rooms, and who is in them: a value without sockets, coroutines or clocks.
///
/// Each function takes what a client did, and returns what is to be done about it, in order.
///
/// Invariants:
///   - `ids` has the key of each guest's name, and no other: so names are unique.
///   - `rooms[room]` contains a guest exactly if the guest's room is `room`; no room is empty.
///   - Members stand in the order in which they came, since the order of a dictionary differs from run to run.
struct ChatHall {
  /// What is to be done.
  enum Effect: Equatable {
    /// Each of these guests gets the line, or the lines.
    case tell([Int], String)
    /// The guest is gone from the hall, and its connection ends.
    case end(Int, ChatEnding)
  }

  private struct Guest {
    var name: String
    var room: String?
  }

  private let limit: Int
  private let longestLine: Int
  private var guests: [Int: Guest] = [:]
  private var ids: [String: Int] = [:]
  private var rooms: [String: [Int]] = [:]
  private var isClosed = false

  /// A hall for `limit` guests at once.
  init(limit: Int, longestLine: Int) {
    self.limit = limit
    self.longestLine = longestLine
  }

  var count: Int { guests.count }

  // MARK: Coming and going

  mutating func enter(_ id: Int) -> [Effect] {
    if isClosed { return [.end(id, .closing)] }
    if guests.count >= limit { return [.end(id, .full(limit: limit))] }
    var number = id
    while ids["guest-\(number)"] != nil { number += 1 }
    let name = "guest-\(number)"
    guests[id] = Guest(name: name)
    ids[ChatName.key(name)] = id
    return [.tell([id], "* Welcome, \(name). /join ROOM enters a room, /help lists the commands.")]
  }

  /// Takes guests out of the hall, for one reason; those that are gone already stay gone.
  ///
  /// Each room gets one line for all of them, in linear time. With a line for each, many who leave at once would be too
  /// much for those who stay.
  mutating func leave(_ leaving: [Int], _ ending: ChatEnding) -> [Effect] {
    var effects: [Effect] = []
    // In the order of the guests, since the order of a dictionary differs from run to run.
    var left: [String] = []
    var names: [String: [String]] = [:]
    for id in leaving {
      guard let guest = guests.removeValue(forKey: id) else { continue }
      ids[ChatName.key(guest.name)] = nil
      effects.append(.end(id, ending))
      guard let room = guest.room else { continue }
      if names[room] == nil { left.append(room) }
      names[room, default: []].append(guest.name)
    }
    let gone = Set(leaving)
    for room in left {
      let rest = takeOut(gone, of: room)
      if rest.isEmpty { continue }
      let names = names[room] ?? []
      let verb = names.count == 1 ? "has" : "have"
      effects.append(.tell(rest, "* \(Self.list(names)) \(verb) left\(ending.remark)."))
    }
    return effects
  }

  /// Takes all guests out of the hall, and admits no more.
  mutating func close() -> [Effect] {
    isClosed = true
    let all = guests.keys.sorted()
    (guests, ids, rooms) = ([:], [:], [:])
    return all.map { .end($0, .closing) }
  }

  /// Takes guests out of the list of a room, and returns the others.
  private mutating func takeOut(_ leaving: Set<Int>, of room: String) -> [Int] {
    rooms[room]?.removeAll { leaving.contains($0) }
    if rooms[room]?.isEmpty == true { rooms[room] = nil }
    return members(of: room)
  }

  // MARK: Lines

  mutating func receive(_ line: String, from id: Int) -> [Effect] {
    guard let guest = guests[id] else { return [] }
    do {
      switch try ChatRequest(line: line) {
      case .nothing: return []
      case .say(let text):
        guard let room = guest.room else { throw ChatRefusal.noRoom }
        return [.tell(members(of: room), "\(guest.name): \(text)")]
      case .nick(let name): return try rename(id, to: name)
      case .join(let room): return try join(id, room)
      case .leave:
        guard let room = guest.room else { throw ChatRefusal.noRoom }
        return left(id, guest.name, room)
      case .rooms: return [.tell([id], listOfRooms)]
      case .who: return [.tell([id], who(guest))]
      case .help: return [.tell([id], ChatRequest.helpText)]
      case .quit: return leave([id], .quit)
      }
    } catch {
      return [.tell([id], "\(error)")]
    }
  }

  /// A line was too long to be taken.
  func refuseLongLine(of id: Int) -> [Effect] {
    guests[id] == nil ? [] : [.tell([id], "\(ChatRefusal.longLine(longest: longestLine))")]
  }

  private func members(of room: String) -> [Int] { rooms[room] ?? [] }

  private mutating func rename(_ id: Int, to name: String) throws(ChatRefusal) -> [Effect] {
    guard let guest = guests[id] else { return [] }
    if let owner = ids[ChatName.key(name)], owner != id { throw .nameTaken(name) }
    ids[ChatName.key(guest.name)] = nil
    ids[ChatName.key(name)] = id
    guests[id]?.name = name
    return [.tell(guest.room.map(members) ?? [id], "* \(guest.name) is now called \(name).")]
  }

  private mutating func join(_ id: Int, _ room: String) throws(ChatRefusal) -> [Effect] {
    guard let guest = guests[id] else { return [] }
    let key = ChatName.key(room)
    if key == guest.room { throw .sameRoom(key) }
    let leaving = guest.room.map { left(id, guest.name, $0) } ?? []
    guests[id]?.room = key
    rooms[key, default: []].append(id)
    return leaving + [.tell(members(of: key), "* \(guest.name) has joined \(key).")]
  }

  private mutating func left(_ id: Int, _ name: String, _ room: String) -> [Effect] {
    guests[id]?.room = nil
    let rest = takeOut([id], of: room)
    return [.tell(rest + [id], "* \(name) has left \(room).")]
  }

  private var listOfRooms: String {
    if rooms.isEmpty { return "* There is no room. /join ROOM opens one." }
    var lines = rooms.keys.sorted().prefix(Self.mostNames).map { "* \($0): \(members(of: $0).count)" }
    if rooms.count > Self.mostNames { lines.append("* and \(rooms.count - Self.mostNames) more") }
    return lines.joined(separator: "\n")
  }

  /// A line has at most so many names, and a list at most so many lines: one client's question must not fill a buffer.
  private static let mostNames = 50

  private static func list(_ names: [String], of count: Int? = nil) -> String {
    let rest = (count ?? names.count) - mostNames
    return names.prefix(mostNames).joined(separator: ", ") + (rest > 0 ? ", and \(rest) more" : "")
  }

  private func who(_ guest: Guest) -> String {
    let here = guest.room.map(members) ?? guests.keys.sorted()
    let names = here.prefix(Self.mostNames).compactMap { guests[$0]?.name }
    return "* \(guest.room ?? "everywhere"): \(Self.list(names, of: here.count))"
  }
}
#endif
