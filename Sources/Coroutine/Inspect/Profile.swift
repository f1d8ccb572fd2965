import Glibc

extension CoroutineRuntime {
  /// Returns a profile of the live coroutines, which `go tool pprof` opens.
  ///
  /// A sample has the stack of a coroutine. Its outermost frame is `launched at FILE:LINE`; a coroutine that has not
  /// started, that runs, or whose stack could not be read, has `(notStarted)`, `(running)` or `(torn)` in place of its
  /// frames. The labels are `name`, `launch_site`, `wait`, `scheduler`, `state` and the number `id`: `pprof -tags`
  /// lists them, and `-tagfocus` selects by them. The file is a protocol buffer that is not compressed.
  ///
  /// Never suspends; any thread, even while all queues are stuck. Takes time and memory in proportion to the number of
  /// coroutines, as ``snapshot(stacks:)`` does, and the first time some tens of milliseconds for the symbol tables.
  public static func profile(_ kind: ProfileKind) -> [UInt8] {
    let coroutines = snapshot(stacks: true).coroutines
    var writer = ProfileWriter(kind)
    let groups = ProfileGroups(coroutines)
    let earlier = ProfileGroups.exchange(groups)
    switch kind.weight {
    case .live:
      for coroutine in coroutines { writer.add(coroutine, 1) }
    case .waiting:
      for coroutine in coroutines where coroutine.state == .waiting {
        writer.add(coroutine, coroutine.since.nanoseconds)
      }
    case .growth:
      for (coroutine, growth) in groups.growth(since: earlier) { writer.add(coroutine, growth, isGroup: true) }
    }
    return writer.finish()
  }

  /// What the samples of a profile weigh.
  public struct ProfileKind: Sendable, Hashable {
    enum Weight { case live, waiting, growth }

    let weight: Weight

    /// One for each live coroutine: the sum is ``CoroutineRuntime/liveCount``.
    public static var live: ProfileKind { ProfileKind(weight: .live) }
    /// The time for which each waiting coroutine has waited, in nanoseconds.
    public static var waiting: ProfileKind { ProfileKind(weight: .waiting) }
    /// By how many more coroutines with the same launch site and stack there are than in the profile before, of any
    /// kind, in this process: leaks come first.
    ///
    /// A sample is one group, and its labels are those of one of its coroutines. Groups that have shrunk have negative
    /// values, and those that have kept their number are not listed.
    public static var growth: ProfileKind { ProfileKind(weight: .growth) }
  }
}

/// The coroutines with equal launch sites and stacks, counted.
struct ProfileGroups: Sendable {
  struct Key: Hashable, Sendable {
    let launchSite: String
    let state: CoroutineRuntime.Snapshot.Coroutine.State
    /// Without the runtime's own innermost frames: two waits at one place may differ there, by the switch used.
    let stack: [UInt]
  }

  private var groups: [Key: (first: CoroutineRuntime.Snapshot.Coroutine, count: Int64)] = [:]
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var last = ProfileGroups([])

  init(_ coroutines: [CoroutineRuntime.Snapshot.Coroutine]) {
    var outer: [[UInt]: [UInt]] = [:]
    for coroutine in coroutines {
      let stack = outer[coroutine.stack] ?? Self.outerFrames(of: coroutine.stack)
      outer[coroutine.stack] = stack
      let key = Key(launchSite: coroutine.launchSite, state: coroutine.state, stack: stack)
      groups[key, default: (coroutine, 0)].count += 1
    }
  }

  private static func outerFrames(of stack: [UInt]) -> [UInt] {
    Symbols.named(stack).drop { $0.owner == .runtime }.map(\.frame.address)
  }

  /// Keeps the groups of this profile, and returns those of the one before.
  static func exchange(_ groups: ProfileGroups) -> ProfileGroups {
    var groups = groups
    lock.withLock { swap(&last, &groups) }
    return groups
  }

  /// The groups whose number has changed, those that have grown most first.
  func growth(since earlier: ProfileGroups) -> [(CoroutineRuntime.Snapshot.Coroutine, Int64)] {
    var changed = groups.compactMap { key, group in
      let growth = group.count - (earlier.groups[key]?.count ?? 0)
      return growth == 0 ? nil : (group.first, growth)
    }
    for (key, group) in earlier.groups where groups[key] == nil { changed.append((group.first, -group.count)) }
    return changed.sorted { $0.1 == $1.1 ? $0.0.launchSite < $1.0.launchSite : $0.1 > $1.1 }
  }
}

/// Writes a profile (github.com/google/pprof, proto/profile.proto).
///
/// Strings, functions, locations and mappings have numbers, which samples use. They are collected while samples are
/// added, each once, and written at the end.
struct ProfileWriter {
  private var profile = ProtobufWriter()
  private var strings: [String: UInt64] = ["": 0]
  private var stringList = [""]
  private var functions: [UInt64: UInt64] = [:]
  private var functionList: [UInt64] = []
  private var locations: [LocationKey: UInt64] = [:]
  private var locationList: [LocationKey] = []
  private var mappings: [String: UInt64] = [:]
  private var mappingList: [(image: String, buildID: String)] = []
  private var frames: [UInt: CoroutineRuntime.Snapshot.Frame] = [:]

  /// A location: an address of the program, or a text in place of one.
  private enum LocationKey: Hashable {
    case address(UInt)
    case text(String)
  }

  init(_ kind: CoroutineRuntime.ProfileKind) {
    let type = kind == .waiting ? ("wait", "nanoseconds") : ("coroutines", "count")
    addType(1, type.0, type.1)
    addType(11, type.0, type.1)
    profile.add(12, 1)
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    profile.add(9, UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec))
  }

  private mutating func addType(_ field: UInt64, _ type: String, _ unit: String) {
    let numbers = (string(type), string(unit))
    profile.add(field) {
      $0.add(1, numbers.0)
      $0.add(2, numbers.1)
    }
  }

  /// Adds a sample; of a group, it has no label that only one of its coroutines has.
  mutating func add(_ coroutine: CoroutineRuntime.Snapshot.Coroutine, _ value: Int64, isGroup: Bool = false) {
    var path: [UInt64]
    if coroutine.stack.isEmpty {
      path = [location(.text("(\(coroutine.isTorn ? "torn" : coroutine.state.rawValue))"))]
    } else {
      name(coroutine.stack)
      path = coroutine.stack.map { location(.address($0)) }
    }
    path.append(location(.text("launched at \(coroutine.launchSite)")))
    var labels: [(key: UInt64, text: UInt64, number: UInt64)] = []
    func label(_ key: String, _ text: String?) {
      if let text { labels.append((string(key), string(text), 0)) }
    }
    if !isGroup {
      label("name", coroutine.name)
      labels.append((string("id"), 0, coroutine.id))
    }
    label("launch_site", coroutine.launchSite)
    label("wait", coroutine.wait?.kind)
    label("scheduler", coroutine.scheduler)
    label("state", coroutine.state.rawValue)
    profile.add(2) { sample in
      sample.add(1, packed: path)
      sample.add(2, packed: [UInt64(bitPattern: value)])
      for label in labels {
        sample.add(3) {
          $0.add(1, label.key)
          $0.add(2, label.text)
          $0.add(3, label.number)
        }
      }
    }
  }

  /// Writes what the samples use, and returns the profile.
  mutating func finish() -> [UInt8] {
    // A location is written with its function and mapping, which get their numbers here.
    for (index, key) in locationList.enumerated() {
      let number = UInt64(index + 1)
      switch key {
      case .text(let text): write(number, function: function(text), address: 0, mapping: 0)
      case .address(let address):
        let frame = frames[address]
        let mapping = frame?.image.map { self.mapping($0, frame?.buildID ?? "") } ?? 0
        // Without a name, pprof shows the address.
        write(number, function: frame?.symbol.map { function($0) } ?? 0, address: UInt64(address), mapping: mapping)
      }
    }
    for (index, mapping) in mappingList.enumerated() {
      let (image, buildID) = (string(mapping.image), string(mapping.buildID))
      profile.add(3) {
        $0.add(1, UInt64(index + 1))
        $0.add(5, image)
        $0.add(6, buildID)
        // The functions have names: pprof does not search for them.
        $0.add(7, 1)
      }
    }
    for (index, name) in functionList.enumerated() {
      profile.add(5) {
        $0.add(1, UInt64(index + 1))
        // Without a name of the system (field 3): pprof would demangle one that is equal, and cut what is between
        // brackets.
        $0.add(2, name)
      }
    }
    for text in stringList { profile.add(6, text.utf8) }
    return profile.bytes
  }

  private mutating func write(_ number: UInt64, function: UInt64, address: UInt64, mapping: UInt64) {
    profile.add(4) {
      $0.add(1, number)
      $0.add(2, mapping)
      $0.add(3, address)
      if function != 0 { $0.add(4) { line in line.add(1, function) } }
    }
  }

  /// Looks up the names of addresses that are new.
  private mutating func name(_ addresses: [UInt]) {
    let new = addresses.filter { frames[$0] == nil }
    for frame in CoroutineRuntime.frames(at: new) { frames[frame.address] = frame }
  }

  // MARK: Numbers

  private mutating func string(_ text: String) -> UInt64 {
    if let known = strings[text] { return known }
    let number = UInt64(stringList.count)
    strings[text] = number
    stringList.append(text)
    return number
  }

  private mutating func function(_ name: String) -> UInt64 {
    let name = string(name)
    if let known = functions[name] { return known }
    functionList.append(name)
    functions[name] = UInt64(functionList.count)
    return UInt64(functionList.count)
  }

  private mutating func location(_ key: LocationKey) -> UInt64 {
    if let known = locations[key] { return known }
    locationList.append(key)
    locations[key] = UInt64(locationList.count)
    return UInt64(locationList.count)
  }

  private mutating func mapping(_ image: String, _ buildID: String) -> UInt64 {
    let key = image + "\0" + buildID
    if let known = mappings[key] { return known }
    mappingList.append((image, buildID))
    mappings[key] = UInt64(mappingList.count)
    return UInt64(mappingList.count)
  }
}

// MARK: - Protocol buffers

/// Writes messages in the wire format of protocol buffers.
///
/// A field is a key, (number << 3) | type, and a value: type 0 is a varint, and type 2 a length with so many bytes.
/// Zero is a field's default, so it is not written, unless it is one of packed values.
struct ProtobufWriter {
  private(set) var bytes: [UInt8] = []

  private mutating func append(varint value: UInt64) {
    var rest = value
    while rest >= 0x80 {
      bytes.append(UInt8(truncatingIfNeeded: rest) | 0x80)
      rest >>= 7
    }
    bytes.append(UInt8(rest))
  }

  mutating func add(_ number: UInt64, _ value: UInt64) {
    if value == 0 { return }
    append(varint: number << 3)
    append(varint: value)
  }

  /// Adds a signed number, which is not zigzag-coded: the type int64.
  mutating func add(_ number: UInt64, signed value: Int64) { add(number, UInt64(bitPattern: value)) }

  mutating func add(_ number: UInt64, _ content: some Collection<UInt8>) {
    append(varint: number << 3 | 2)
    append(varint: UInt64(content.count))
    bytes.append(contentsOf: content)
  }

  /// Adds a message inside of this one.
  mutating func add(_ number: UInt64, message write: (inout ProtobufWriter) -> Void) {
    var inner = ProtobufWriter()
    write(&inner)
    add(number, inner.bytes)
  }

  /// Adds packed numbers.
  mutating func add(_ number: UInt64, packed values: [UInt64]) {
    var inner = ProtobufWriter()
    for value in values { inner.append(varint: value) }
    add(number, inner.bytes)
  }
}
