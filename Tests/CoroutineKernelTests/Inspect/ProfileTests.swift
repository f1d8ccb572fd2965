import Dispatch
import Foundation
import Testing

@testable import Coroutine

// In processes of their own: a profile has the coroutines of all tests.
@Suite("CoroutineRuntime.profile", .timeLimit(.minutes(10)))
struct ProfileTests {
  @Test func `the sum of the live profile is liveCount, with and without stacks`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let queue = DispatchQueue(label: "profiled.queue")
      let (bytes, count) = try await co_launch(on: queue) {
        for index in 0..<100 { co_launch(name: "waiter \(index % 2)") { try gate.pass() } }
        co_launch { try co_delay(.seconds(3_600)) }
        try co_yield()
        for _ in 0..<10 { co_launch {} }
        return (CoroutineRuntime.profile(.live), CoroutineRuntime.liveCount)
      }.value
      let profile = try DecodedProfile(bytes)
      #expect(count == 112)
      #expect(profile.samples.reduce(0) { $0 + $1.value } == Int64(count))
      #expect(profile.types == ["coroutines/count"])
      #expect(profile.samples.count { $0.labels["name"] == "waiter 0" } == 50)
      #expect(
        profile.samples.count { $0.labels["wait"] == "promise" && $0.labels["scheduler"] == "profiled.queue" } == 100
      )
      #expect(profile.samples.count { $0.frames == ["(notStarted)", $0.frames.last] } == 10)
      #expect(profile.samples.allSatisfy { $0.frames.last?.hasPrefix("launched at ") == true })
      // The stacks are there, and their frames have names: the line of this test that waits is in one of them.
      if !isSanitized {
        let waiter = try #require(profile.samples.first { $0.labels["wait"] == "promise" })
        #expect(waiter.frames.count > 3, "\(waiter.frames)")
        #expect(waiter.frames.contains { $0.contains("ProfileTests") }, "\(waiter.frames)")
      }
    }
  }

  @Test func `the waiting profile weighs by time, and the growth profile shows the leak first`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let queue = DispatchQueue(label: "profiled.growth")
      let launch: @Sendable (Int, Int) throws -> Void = { steady, leaking in
        for _ in 0..<steady { co_launch { try gate.pass() } }
        for _ in 0..<leaking { co_launch { try gate.pass() } }
        try co_yield()
      }
      try await co_launch(on: queue) { try launch(30, 10) }.value
      while CoroutineRuntime.snapshot().coroutines.count(where: { $0.state == .waiting }) < 40 { await Task.yield() }
      let first = try DecodedProfile(CoroutineRuntime.profile(.waiting))
      #expect(first.types == ["wait/nanoseconds"] && first.samples.count == 40, "\(first.samples.count)")
      try await co_launch(on: queue) { try launch(0, 25) }.value
      while CoroutineRuntime.snapshot().coroutines.count(where: { $0.state == .waiting }) < 65 { await Task.yield() }
      let growth = try DecodedProfile(CoroutineRuntime.profile(.growth))
      #expect(growth.samples.map(\.value) == [25], "\(growth.samples.map(\.value))")
      let unchanged = try DecodedProfile(CoroutineRuntime.profile(.growth)).samples.map(\.value)
      #expect(unchanged.isEmpty, "\(unchanged)")
      gate.open()
      while CoroutineRuntime.liveCount > 0 { await Task.yield() }
      let shrunk = try DecodedProfile(CoroutineRuntime.profile(.growth))
      #expect(shrunk.samples.reduce(0) { $0 + $1.value } == -65, "\(shrunk.samples.map(\.value))")
    }
  }

  // Foundation's Process leaves weak references behind, which LeakSanitizer finds.
  @Test(.enabled(if: ProfileTests.go != nil && !isSanitized))
  func `go tool pprof opens each kind of profile, and has the same sums`() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      try await co_launch(on: DispatchQueue(label: "profiled.go")) {
        for _ in 0..<20 { co_launch(name: "a \"quoted\" name") { try gate.pass() } }
        try co_yield()
      }.value
      let profiles: [(CoroutineRuntime.ProfileKind, String)] = [
        (.growth, "Total samples"), (.live, "coroutines"), (.waiting, "wait"),
      ]
      for (kind, type) in profiles {
        let file = FileManager.default.temporaryDirectory.appending(path: "coroutine-\(getpid()).pb")
        try Data(CoroutineRuntime.profile(kind)).write(to: file)
        defer { try? FileManager.default.removeItem(at: file) }
        let raw = try ProfileTests.pprof("-raw", file.path)
        #expect(raw.contains("launched at"), "\(raw.prefix(2_000))")
        #expect(kind == .growth || raw.contains("\(type)/"), "\(raw.prefix(500))")
        let top = try ProfileTests.pprof("-top", file.path)
        if kind != .waiting { #expect(top.contains("of 20 total"), "\(top)") }
        let tags = try ProfileTests.pprof("-tags", file.path)
        #expect(kind == .growth || tags.contains("a \"quoted\" name"), "\(tags)")
      }
    }
  }

  /// The command `go`, if it is installed.
  static let go: String? = ["/usr/bin/go", "/usr/local/go/bin/go", "/usr/local/bin/go"].first {
    FileManager.default.isExecutableFile(atPath: $0)
  }

  /// Runs `go tool pprof`, and returns what it prints.
  private static func pprof(_ mode: String, _ file: String) throws -> String {
    let process = Process()
    process.executableURL = URL(filePath: go!)
    process.arguments = ["tool", "pprof", "-symbolize=none", mode, file]
    let output = Pipe()
    process.standardOutput = output
    process.standardError = output
    try process.run()
    let text = String(decoding: output.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
    process.waitUntilExit()
    #expect(process.terminationStatus == 0, "\(text)")
    return text
  }
}

/// A profile, read by the rules of the wire format: each reference must have what it names.
private struct DecodedProfile {
  struct Sample {
    var frames: [String] = []
    var value: Int64 = 0
    var labels: [String: String] = [:]
  }
  struct Malformed: Error {}

  private(set) var types: [String] = []
  private(set) var samples: [Sample] = []

  init(_ bytes: [UInt8]) throws {
    let message = try Message(bytes[...])
    let strings = message.all(6).map { String(decoding: $0.bytes, as: UTF8.self) }
    guard strings.first == "" else { throw Malformed() }
    func string(_ number: UInt64) throws -> String {
      guard number < strings.count else { throw Malformed() }
      return strings[Int(number)]
    }
    var functions: [UInt64: String] = [:]
    for field in message.all(5) {
      let function = try Message(field.bytes)
      functions[function.number(1)] = try string(function.number(2))
      // With one, pprof would demangle it, and cut brackets from it.
      guard function.number(3) == 0 else { throw Malformed() }
    }
    let mappings = Set(try message.all(3).map { try Message($0.bytes).number(1) })
    var locations: [UInt64: String] = [:]
    for field in message.all(4) {
      let location = try Message(field.bytes)
      guard location.number(2) == 0 || mappings.contains(location.number(2)) else { throw Malformed() }
      if let line = location.all(4).first {
        guard let name = functions[try Message(line.bytes).number(1)] else { throw Malformed() }
        locations[location.number(1)] = name
      } else {
        locations[location.number(1)] = "0x" + String(location.number(3), radix: 16)
      }
    }
    types = try message.all(1).map {
      let type = try Message($0.bytes)
      return try string(type.number(1)) + "/" + string(type.number(2))
    }
    for field in message.all(2) {
      let message = try Message(field.bytes)
      var sample = Sample()
      for number in try Message.packed(message.all(1)) {
        guard let name = locations[number] else { throw Malformed() }
        sample.frames.append(name)
      }
      let values = try Message.packed(message.all(2))
      guard values.count == 1 else { throw Malformed() }
      sample.value = Int64(bitPattern: values[0])
      for field in message.all(3) {
        let label = try Message(field.bytes)
        let key = try string(label.number(1))
        sample.labels[key] = label.number(3) != 0 ? "\(label.number(3))" : try string(label.number(2))
      }
      samples.append(sample)
    }
  }

  /// The fields of one message.
  private struct Message {
    struct Field {
      var number: UInt64 = 0
      var bytes: ArraySlice<UInt8> = []
    }
    private var fields: [UInt64: [Field]] = [:]

    init(_ bytes: ArraySlice<UInt8>) throws {
      var rest = bytes
      while !rest.isEmpty {
        let key = try Self.varint(&rest)
        switch key & 7 {
        case 0: fields[key >> 3, default: []].append(Field(number: try Self.varint(&rest)))
        case 2:
          let count = Int(try Self.varint(&rest))
          guard count <= rest.count else { throw Malformed() }
          fields[key >> 3, default: []].append(Field(bytes: rest.prefix(count)))
          rest = rest.dropFirst(count)
        default: throw Malformed()
        }
      }
    }

    func all(_ number: UInt64) -> [Field] { fields[number] ?? [] }
    func number(_ number: UInt64) -> UInt64 { all(number).last?.number ?? 0 }

    static func packed(_ fields: [Field]) throws -> [UInt64] {
      var numbers: [UInt64] = []
      for field in fields {
        var rest = field.bytes
        while !rest.isEmpty { numbers.append(try varint(&rest)) }
      }
      return numbers
    }

    private static func varint(_ rest: inout ArraySlice<UInt8>) throws -> UInt64 {
      var (value, shift): (UInt64, UInt64) = (0, 0)
      while let byte = rest.popFirst() {
        value |= UInt64(byte & 0x7F) << shift
        if byte < 0x80 { return value }
        shift += 7
        guard shift < 64 else { break }
      }
      throw Malformed()
    }
  }
}
