#if HTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Clients that misbehave at random, for as long as it takes.
///
/// `make soak-http` runs 2,000 of them for ten minutes;
/// CO_SEED repeats their decisions.
@Suite("A soak of the server", .timeLimit(.minutes(60)))
struct HTTPSoakTests {
  private struct Oops: Error {}

  /// A request carries its number in the path and in its body; the answer has to have both.
  @Sendable private static func handle(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    let number = String(request.path.dropFirst())
    switch request.query {
    case "fails": throw Oops()
    case "late":
      try response.write(number)
      throw Oops()
    case "slow": try co_delay(.milliseconds(3))
    case "unread": return try response.send(number + " ")
    case "parts":
      let body = try request.collect()
      for character in number { try response.write(String(character)) }
      try response.write(" ")
      return try response.write(String(decoding: body, as: UTF8.self))
    default: break
    }
    try response.send(number + " " + String(decoding: try request.collect(), as: UTF8.self))
  }

  private struct Tally: Sendable {
    var answers = 0
    var faults = 0
    var wrong: [String] = []
  }

  /// Requests on one connection after the other until the time is over, and at least two were answered.
  ///
  /// On a busy machine the time alone may be over before the first answer; a server that hangs meets the suite's limit.
  private static func run(_ client: Int, _ address: SocketAddress, _ seed: UInt64, until end: ContinuousClock.Instant)
    throws -> Tally
  {
    var numbers = SeededNumbers(seed &+ UInt64(client))
    var (tally, number) = (Tally(), 0)
    func goesOn() -> Bool { ContinuousClock.now < end || tally.answers < 2 }
    while goesOn() {
      let connection = try Connection.connect(to: address)
      defer { connection.close() }
      var reader = BufferedReader(connection)
      do {
        var isOpen = true
        while isOpen, goesOn() {
          number += 1
          isOpen = try exchange("\(client)-\(number)", connection, &reader, &numbers, &tally)
        }
      } catch is NetError {
        // The server closes after errors; whether a reset overtakes the answer is up to the system.
        tally.faults += 1
      }
    }
    return tally
  }

  /// One exchange; returns whether the connection may be used again.
  private static func exchange(
    _ name: String,
    _ connection: Connection,
    _ reader: inout BufferedReader,
    _ numbers: inout SeededNumbers,
    _ tally: inout Tally
  ) throws -> Bool {
    let kind = ["", "", "", "slow", "parts", "unread", "fails", "late"].randomElement(using: &numbers) ?? ""
    let body = String(repeating: "b", count: Int.random(in: 0...3_000, using: &numbers)) + name
    let isChunked = Bool.random(using: &numbers)
    var text = "POST /\(name)?\(kind) HTTP/1.1\r\nHost: a\r\n"
    if isChunked {
      let half = body.utf8.count / 2
      text += "Transfer-Encoding: chunked\r\n\r\n"
      for part in [body.prefix(half), body.dropFirst(half)] where !part.isEmpty {
        text += String(part.utf8.count, radix: 16) + "\r\n\(part)\r\n"
      }
      text += "0\r\n\r\n"
    } else {
      text += "Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }
    let bytes = Array(text.utf8)
    switch Int.random(in: 0..<24, using: &numbers) {
    case 0:
      // Half a request, and a close.
      tally.faults += 1
      try connection.write(bytes.prefix(Int.random(in: 0..<bytes.count, using: &numbers)))
      return false
    case 1:
      // A whole one, and nobody who waits for the answer.
      tally.faults += 1
      try connection.write(bytes)
      return false
    case 2:
      tally.faults += 1
      try connection.write("garbage \(name)\r\n\r\n".utf8)
      while try !reader.read(upTo: 4_096).isEmpty {}
      return false
    case 3:
      // In two pieces, with a pause.
      let cut = Int.random(in: 0...bytes.count, using: &numbers)
      try connection.write(bytes[..<cut])
      try co_delay(.milliseconds(1))
      try connection.write(bytes[cut...])
    default: try connection.write(bytes)
    }
    return try readAnswer(name, kind, body, &reader, &tally)
  }

  private static func readAnswer(
    _ name: String,
    _ kind: String,
    _ body: String,
    _ reader: inout BufferedReader,
    _ tally: inout Tally
  ) throws -> Bool {
    guard let status = try reader.readLine() else { throw NetError.endOfStream }
    var (length, isChunked, closes) = (0, false, false)
    while let line = try reader.readLine(), !line.isEmpty {
      if line.hasPrefix("content-length: ") { length = Int(line.dropFirst(16)) ?? -1 }
      if line == "transfer-encoding: chunked" { isChunked = true }
      if line == "connection: close" { closes = true }
    }
    var answer: [UInt8] = []
    if isChunked {
      while let line = try reader.readLine(), let size = Int(line, radix: 16) {
        answer += try reader.read(exactly: size)
        _ = try reader.readLine()
        if size == 0 { break }
      }
    } else {
      answer = try reader.read(exactly: length)
    }
    let text = String(decoding: answer, as: UTF8.self)
    let isRight =
      switch kind {
      case "fails": status.contains(" 500 ") && !text.contains("-")
      // Its end never comes: read(exactly:) has thrown.
      case "late": status.contains(" 200 ") && name.hasPrefix(text)
      case "unread": status.contains(" 200 ") && text == name + " "
      default: status.contains(" 200 ") && text == name + " " + body
      }
    tally.answers += 1
    if !isRight { tally.wrong.append("\(name) \(kind): \(status) \(text.prefix(100))") }
    return !closes && kind != "late" && kind != "fails"
  }

  @Test func `every answer belongs to its request, while clients and handlers fail at random`() async throws {
    let clients = setting("CO_HTTP_CLIENTS", 100)
    let seed = UInt64(setting("CO_SEED", Int(UInt32.random(in: 0 ... .max))))
    try await onCoroutine {
      try raiseDescriptorLimit(to: 2 * clients + 200)
      var options = HTTPServer.Options()
      // What clients have done wrong is told as well.
      let faultsOfServer = Locked<[String]>([])
      options.server.onError = { error, _ in
        if error is Oops || (error as? HTTPError)?.isOfClient == true { return }
        faultsOfServer.withLock { $0.append("\(error)") }
      }
      let server = try Running(options, Self.handle)
      let end = ContinuousClock.now + .seconds(setting("CO_HTTP_SOAK_SECONDS", 2))
      let jobs = (0..<clients).map { client in
        co_launch { try Self.run(client, server.address, seed, until: end) }
      }
      var (answers, faults) = (0, 0)
      for job in jobs {
        let tally = try job.join()
        answers += tally.answers
        faults += tally.faults
        #expect(tally.wrong.isEmpty, "seed \(seed)")
      }
      #expect(answers > clients && faults > 0)
      #expect(faultsOfServer.current.isEmpty, "\(faultsOfServer.current.prefix(5))")
      try server.stop()
    }
  }
}

/// Lets this process open as many descriptors, and those of the tests beside this one, as far as the system allows.
func raiseDescriptorLimit(to own: Int) throws {
  let count = own + 4_000
  var limit = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  guard limit.rlim_cur < count else { return }
  limit.rlim_cur = min(limit.rlim_max, rlim_t(count))
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
}
#endif
