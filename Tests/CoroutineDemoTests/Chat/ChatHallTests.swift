#if Demo
import Testing

@testable import CoroutineDemo

/// The rooms without a server.
@Suite struct `The hall of a chat` {
  private var hall = ChatHall(limit: 3, longestLine: 100)

  /// A hall with alice (1) and bob (2) in the room tea.
  private static func withTwo() -> ChatHall {
    var hall = ChatHall(limit: 3, longestLine: 100)
    for (id, name) in [(1, "alice"), (2, "bob")] {
      _ = hall.enter(id)
      _ = hall.receive("/nick \(name)", from: id)
      _ = hall.receive("/join tea", from: id)
    }
    return hall
  }

  @Test mutating func `welcomes with a name that nobody has`() {
    #expect(
      hall.enter(1) == [
        .tell([1], "* Welcome, guest-1. /join ROOM enters a room, /help lists the commands.")
      ]
    )
    #expect(hall.receive("/nick guest-2", from: 1) == [.tell([1], "* guest-1 is now called guest-2.")])
    #expect(
      hall.enter(2) == [
        .tell([2], "* Welcome, guest-3. /join ROOM enters a room, /help lists the commands.")
      ]
    )
  }

  @Test func `a message goes to everybody in the room, in the order of their coming, and to nobody else`() {
    var hall = Self.withTwo()
    _ = hall.enter(3)
    #expect(hall.receive("hello", from: 2) == [.tell([1, 2], "bob: hello")])
    #expect(hall.receive("hello", from: 3) == [.tell([3], "\(ChatRefusal.noRoom)")])
    #expect(hall.receive("/join Tea", from: 3) == [.tell([1, 2, 3], "* guest-3 has joined tea.")])
    #expect(hall.receive("  hello ", from: 3) == [.tell([1, 2, 3], "guest-3:   hello ")])
    #expect(hall.receive("", from: 3) == [])
    #expect(hall.receive(" \t", from: 3) == [])
  }

  @Test func `joining another room leaves the first, and an empty room is gone`() {
    var hall = Self.withTwo()
    #expect(
      hall.receive("/join coffee", from: 1) == [
        .tell([2, 1], "* alice has left tea."), .tell([1], "* alice has joined coffee."),
      ]
    )
    #expect(hall.receive("/join coffee", from: 1) == [.tell([1], "\(ChatRefusal.sameRoom("coffee"))")])
    #expect(hall.receive("hello", from: 2) == [.tell([2], "bob: hello")])
    #expect(hall.receive("/rooms", from: 2) == [.tell([2], "* coffee: 1\n* tea: 1")])
    #expect(hall.receive("/leave", from: 1) == [.tell([1], "* alice has left coffee.")])
    #expect(hall.receive("/leave", from: 1) == [.tell([1], "\(ChatRefusal.noRoom)")])
    #expect(hall.receive("/rooms", from: 2) == [.tell([2], "* tea: 1")])
    #expect(hall.leave([2], .gone) == [.end(2, .gone)])
    #expect(hall.receive("/rooms", from: 1) == [.tell([1], "* There is no room. /join ROOM opens one.")])
  }

  @Test func `a name belongs to one, whatever its case, and is free again when it is given up`() {
    var hall = Self.withTwo()
    #expect(hall.receive("/nick Alice", from: 2) == [.tell([2], "\(ChatRefusal.nameTaken("Alice"))")])
    // One's own name, written otherwise, is no collision.
    #expect(hall.receive("/nick ALICE", from: 1) == [.tell([1, 2], "* alice is now called ALICE.")])
    #expect(hall.receive("/nick carol", from: 1) == [.tell([1, 2], "* ALICE is now called carol.")])
    #expect(hall.receive("/nick alice", from: 2) == [.tell([1, 2], "* bob is now called alice.")])
    _ = hall.leave([2], .gone)
    #expect(hall.receive("/nick alice", from: 1) == [.tell([1], "* carol is now called alice.")])
  }

  @Test func `who is here is told for the room, and without a room for everywhere`() {
    var hall = Self.withTwo()
    _ = hall.enter(3)
    #expect(hall.receive("/who", from: 1) == [.tell([1], "* tea: alice, bob")])
    #expect(hall.receive("/who", from: 3) == [.tell([3], "* everywhere: alice, bob, guest-3")])
  }

  @Test func `a long list of names is cut`() {
    var hall = ChatHall(limit: 60, longestLine: 100)
    for id in 1...60 { _ = hall.enter(id) }
    guard case .tell([1], let line)? = hall.receive("/who", from: 1).first else {
      Issue.record("no answer")
      return
    }
    #expect(line.hasSuffix("guest-49, guest-50, and 10 more"))
  }

  @Test func `a long list of rooms is cut`() {
    var hall = ChatHall(limit: 60, longestLine: 100)
    for id in 1...60 {
      _ = hall.enter(id)
      _ = hall.receive("/join room-\(id + 100)", from: id)
    }
    guard case .tell([1], let text)? = hall.receive("/rooms", from: 1).first else {
      Issue.record("no answer")
      return
    }
    let lines = text.split(separator: "\n")
    #expect(lines.count == 51 && lines[0] == "* room-101: 1" && lines[49] == "* room-150: 1")
    #expect(lines[50] == "* and 10 more")
  }

  @Test(arguments: [
    (ChatEnding.gone, "* alice has left (gone)."), (.idle(seconds: 3), "* alice has left (idle)."),
    (.tooSlow(backlog: 9), "* alice has left (too slow)."), (.quit, "* alice has left."),
  ])
  func `leaving is told to the room with its reason, once`(ending: ChatEnding, line: String) {
    var hall = Self.withTwo()
    #expect(hall.leave([1], ending) == [.end(1, ending), .tell([2], line)])
    #expect(hall.leave([1], .gone) == [])
    #expect(hall.receive("hello", from: 1) == [])
    #expect(hall.refuseLongLine(of: 1) == [])
    #expect(hall.receive("hello", from: 2) == [.tell([2], "bob: hello")])
  }

  @Test func `of those who leave together, each room is told once`() {
    var hall = ChatHall(limit: 100, longestLine: 100)
    for id in 1...62 {
      _ = hall.enter(id)
      _ = hall.receive("/join \(id % 10 == 2 ? "coffee" : "tea")", from: id)
    }
    // One of no room, one who is not there, and one twice.
    _ = hall.receive("/leave", from: 1)
    #expect(
      hall.leave([1, 2, 3, 3, 4, 99], .gone) == [
        .end(1, .gone), .end(2, .gone), .end(3, .gone), .end(4, .gone),
        .tell([12, 22, 32, 42, 52, 62], "* guest-2 has left (gone)."),
        .tell((5...61).filter { $0 % 10 != 2 }, "* guest-3, guest-4 have left (gone)."),
      ]
    )
    let leaving = (5...59).filter { $0 % 10 != 2 }
    guard case .tell([60, 61], let line)? = hall.leave(leaving, .tooSlow(backlog: 9)).last else {
      Issue.record("nobody is told")
      return
    }
    #expect(line.hasPrefix("* guest-5, guest-6, ") && line.hasSuffix(", guest-59 have left (too slow)."))
    #expect(hall.receive("/rooms", from: 61) == [.tell([61], "* coffee: 6\n* tea: 2")])
    #expect(hall.leave([60, 61], .quit) == [.end(60, .quit), .end(61, .quit)])
    #expect(hall.leave([12, 22, 32, 42, 52, 62], .quit).count == 6)
    #expect(hall.count == 0)
  }

  @Test func `a line names fifty of those who leave together, and counts the others`() {
    var hall = ChatHall(limit: 100, longestLine: 100)
    for id in 1...60 {
      _ = hall.enter(id)
      _ = hall.receive("/join tea", from: id)
    }
    guard case .tell([60], let line)? = hall.leave(Array(1...59), .gone).last else {
      Issue.record("nobody is told")
      return
    }
    #expect(line.hasSuffix("guest-49, guest-50, and 9 more have left (gone)."))
  }

  @Test func `quit takes the client out of its room`() {
    var hall = Self.withTwo()
    #expect(hall.receive("/quit", from: 2) == [.end(2, .quit), .tell([1], "* bob has left.")])
  }

  @Test func `one more than the limit is sent away, until somebody leaves`() {
    var hall = Self.withTwo()
    _ = hall.enter(3)
    #expect(hall.enter(4) == [.end(4, .full(limit: 3))])
    #expect(hall.receive("/nick dave", from: 4) == [])
    _ = hall.leave([1], .quit)
    #expect(
      hall.enter(5).first == .tell([5], "* Welcome, guest-5. /join ROOM enters a room, /help lists the commands.")
    )
    #expect(hall.count == 3)
  }

  @Test func `a closed hall says so to everybody, and to those who come late`() {
    var hall = Self.withTwo()
    #expect(hall.close() == [.end(1, .closing), .end(2, .closing)])
    #expect(hall.enter(3) == [.end(3, .closing)])
    #expect(hall.leave([1], .gone) == [])
    #expect(hall.close() == [])
  }

  @Test func `random walks keep the names unique and the rooms consistent`() {
    var random = SmallRandom(state: 7)
    for _ in 0..<200 {
      var hall = ChatHall(limit: 6, longestLine: 100)
      var rooms: [Int: String] = [:]
      var here: Set<Int> = []
      for _ in 0..<60 {
        let id = Int.random(in: 1...8, using: &random)
        let room = ["tea", "coffee"].randomElement(using: &random)!
        switch Int.random(in: 0..<6, using: &random) {
        case 0 where !here.contains(id):
          if case .tell? = hall.enter(id).first { here.insert(id) }
        case 1 where here.contains(id):
          _ = hall.leave([id], .gone)
          here.remove(id)
          rooms[id] = nil
        case 2 where here.contains(id):
          _ = hall.receive("/join \(room)", from: id)
          rooms[id] = room
        case 3 where here.contains(id):
          _ = hall.receive("/nick n\(Int.random(in: 0..<4, using: &random))", from: id)
        default:
          let heard = hall.receive("x", from: id)
          guard here.contains(id) else {
            #expect(heard == [])
            continue
          }
          guard case .tell(let ids, _)? = heard.first else {
            Issue.record("no answer")
            return
          }
          let expected = rooms[id].map { room in Set(here.filter { rooms[$0] == room }) } ?? Set([id])
          #expect(Set(ids) == expected && ids.count == expected.count)
        }
        #expect(hall.count == here.count)
      }
      guard let one = here.first else { continue }
      _ = hall.receive("/leave", from: one)
      guard case .tell(_, let names)? = hall.receive("/who", from: one).first else { continue }
      let list = names.dropFirst("* everywhere: ".count).split(separator: ", ")
      #expect(list.count == here.count && Set(list).count == list.count)
    }
  }
}

/// SplitMix64.
struct SmallRandom: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}

@Suite struct `What a line asks for` {
  @Test(
    arguments: [
      ("hello /join", .say("hello /join")), ("/join tea", .join("tea")), ("/join   tea  ", .join("tea")),
      ("/nick Al-1_x", .nick("Al-1_x")), ("/leave", .leave), ("/rooms", .rooms), ("/who", .who), ("/help", .help),
      ("/quit", .quit), ("", .nothing), ("   ", .nothing),
    ] as [(String, ChatRequest)]
  )
  func `is read from it`(line: String, request: ChatRequest) throws {
    #expect(try ChatRequest(line: line) == request)
  }

  @Test(
    arguments: [
      ("/", .unknownCommand("/")), ("/JOIN tea", .unknownCommand("/JOIN")), ("/join", .missingName("/join")),
      ("/nick  ", .missingName("/nick")), ("/nick 1st", .badName("1st")), ("/join a b", .badName("a b")),
      ("/nick zoë", .badName("zoë")), ("/nick *", .badName("*")),
      ("/nick abcdefghijklmnopqrstu", .badName("abcdefghijklmnopqrstu")),
      // Looks like alice, and begins with a Cyrillic letter.
      ("/nick \u{0430}lice", .badName("\u{0430}lice")),
    ] as [(String, ChatRefusal)]
  )
  func `is refused with a code`(line: String, refusal: ChatRefusal) {
    #expect(throws: refusal) { try ChatRequest(line: line) }
    #expect("\(refusal)".wholeMatch(of: /! [a-z-]+ [^\n]+/) != nil)
  }

  @Test func `nothing in it can act on another one's terminal`() throws {
    #expect(
      try ChatRequest(line: "a\u{1B}[31mb\u{9B}c\td\u{7F}\r") == .say("a\u{FFFD}[31mb\u{FFFD}c\td\u{FFFD}\u{FFFD}")
    )
    #expect(try ChatRequest(line: "\u{202E}evil\u{2028}\u{2066}") == .say("\u{FFFD}evil\u{FFFD}\u{FFFD}"))
    #expect(try ChatRequest(line: "日本 🫖 Zoë") == .say("日本 🫖 Zoë"))
    #expect(throws: ChatRefusal.badName("a\u{FFFD}")) { try ChatRequest(line: "/nick a\u{1B}") }
  }
}
#endif
