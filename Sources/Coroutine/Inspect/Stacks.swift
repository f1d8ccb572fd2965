internal import CCoroutineInspect
import Glibc

/// Reads where parked jobs are: the return addresses of their frames.
///
/// `Sources/CCoroutineInspect/Walk.c` has the argument why what it returns was there at one moment, although nothing
/// is stopped. While a reader lives, no memory of stacks is unmapped; so it lives as long as one snapshot.
struct StackReader: ~Copyable {
  /// A job as it was inspected, with its stack.
  struct Entry {
    var job: InspectedJob
    var stack: [UInt] = []
    var isTorn = false
    /// Whether the stack ends before the coroutine's first function.
    var isCut = false
    /// Of a coroutine that has run for long.
    var thread: RunningThread?
  }

  /// The number of stacks that are walked together.
  static var batch: Int { 16 }
  /// The number of times that a job which moves is read again.
  private static var repeats: Int { 4 }

  private let reads: Bool
  let status: cco_walk_status
  private var walk = cco_walk()
  private let frames: UnsafeMutablePointer<UInt>
  private let targets: UnsafeMutablePointer<cco_walk_target>
  /// The stacks that were read, by a hash of their frames.
  ///
  /// Most coroutines of a server share a few of them.
  private var known: [UInt64: [[UInt]]] = [:]

  /// Without `reads` it inspects jobs only.
  init(reads: Bool = true) {
    self.reads = reads
    status = reads ? cco_walk_begin(&walk) : CCO_WALK_READY
    frames = .allocate(capacity: Self.batch * Self.most)
    targets = .allocate(capacity: Self.batch)
  }

  deinit {
    if reads, status == CCO_WALK_READY {
      var walk = walk
      cco_walk_end(&walk)
    }
    frames.deallocate()
    targets.deallocate()
  }

  private static var most: Int { Int(CCO_MOST_FRAMES) }

  /// Inspects jobs, any number of them, which the caller holds, and reads their stacks.
  mutating func readAll(_ jobs: [AnyJob]) -> [Entry] {
    var entries: [Entry] = []
    for first in stride(from: 0, to: jobs.count, by: Self.batch) {
      entries += read(jobs[first..<min(first + Self.batch, jobs.count)])
    }
    return entries
  }

  /// Inspects jobs, `batch` at most, which the caller holds, and reads their stacks.
  mutating func read(_ jobs: ArraySlice<AnyJob>) -> [Entry] {
    var entries = jobs.map { Entry(job: InspectedJob($0)) }
    guard reads, status == CCO_WALK_READY else { return entries }
    var open = entries.indices.filter { entries[$0].job.isParked }
    var rounds = 0
    while !open.isEmpty {
      let moved = walk(open, &entries)
      open = []
      rounds += 1
      for index in moved {
        if rounds > Self.repeats {
          entries[index].isTorn = true
          continue
        }
        entries[index].job = InspectedJob(entries[index].job.job)
        if entries[index].job.isParked { open.append(index) }
      }
    }
    return entries
  }

  /// Walks the stacks of some entries, and returns those that moved.
  private mutating func walk(_ indices: [Int], _ entries: inout [Entry]) -> [Int] {
    for (position, index) in indices.enumerated() {
      let target = entries[index].job.walkTarget(frames + position * Self.most, UInt32(Self.most))
      (targets + position).initialize(to: target)
    }
    cco_walk_stacks(&walk, targets, indices.count)
    var moved: [Int] = []
    for (position, index) in indices.enumerated() {
      if targets[position].outcome != CCO_WALK_WALKED {
        moved.append(index)
      } else {
        let found = UnsafeBufferPointer(start: frames + position * Self.most, count: Int(targets[position].count))
        entries[index].stack = shared(found)
        entries[index].isCut = !targets[position].is_whole
      }
    }
    return moved
  }

  /// The array with these frames, one for all equal stacks.
  private mutating func shared(_ frames: UnsafeBufferPointer<UInt>) -> [UInt] {
    var hash: UInt64 = 0xCBF2_9CE4_8422_2325
    for frame in frames { hash = (hash ^ UInt64(frame)) &* 0x0000_0100_0000_01B3 }
    for stack in known[hash, default: []] where stack.elementsEqual(frames) { return stack }
    let stack = Array(frames)
    known[hash, default: []].append(stack)
    return stack
  }
}

extension InspectedJob {
  /// Whether the job has left a stack to which it returns.
  var isParked: Bool { isWaiting || state == .ready }

  /// What the walker checks before and after.
  fileprivate func walkTarget(_ frames: UnsafeMutablePointer<UInt>, _ most: UInt32) -> cco_walk_target {
    let record = job.record
    return cco_walk_target(
      // Sound because it is the first stored property.
      context: UnsafeRawPointer(record),
      // Sound because a stored property of a record keeps its address, and an Atomic has the layout of its value.
      wait: withUnsafePointer(to: record.pointee.wait) {
        UnsafeRawPointer($0).assumingMemoryBound(to: UInt64.self)
      },
      since: withUnsafePointer(to: record.pointee.waitingSince) {
        UnsafeRawPointer($0).assumingMemoryBound(to: UInt64.self)
      },
      wait_word: word,
      since_word: sinceWord,
      frames: frames,
      most: most,
      count: 0,
      outcome: CCO_WALK_NONE,
      is_whole: false,
      own: nil,
      stack: nil
    )
  }
}

// MARK: - Names of code addresses

/// The names of code addresses, each of which is looked up once.
///
/// `Sources/CCoroutineInspect/Symbols.c` reads the symbol tables.
enum Symbols {
  /// Whose function it is.
  enum Owner {
    /// This library's.
    case runtime
    /// The standard library's, or made by the compiler to adapt one type of closure to another.
    case standard
    case program

    /// In a mangled name the module comes first, but for a type of the standard library that the module extends, and
    /// for the extension of a module's type by another module, which is known by its readable name.
    init(_ mangled: String, _ readable: String?) {
      self =
        if mangled.hasPrefix("cco_") || mangled.hasPrefix("clinux_") || mangled.hasPrefix("_ZL10trampolineN5boost")
          || mangled.hasPrefix("_ZL") && mangled.contains("cco_")
        {
          // The last ones are C++ functions of the core that have a type of its own.
          .runtime
        } else if !mangled.hasPrefix("$s") {
          .program
        } else if let module = readable.flatMap(Self.extendingModule) {
          Library.modules.contains(module) ? .runtime : .program
        } else if Self.prefixes.contains(where: mangled.hasPrefix) {
          .runtime
        } else if mangled.hasPrefix("$ss") || mangled.hasPrefix("$sS") || mangled.hasSuffix("TR")
          || mangled.hasSuffix("TRTA")
        {
          .standard
        } else {
          .program
        }
    }

    private static let prefixes = Library.modules.flatMap { module in
      ["$s", "$sSp", "$sSP"].map { "\($0)\(module.utf8.count)\(module)" }
    }

    /// The module of `(extension in Server):Coroutine.Channel.drop()`, also of a closure in it.
    private static func extendingModule(_ readable: String) -> String? {
      let mark = "(extension in "
      guard let start = readable.firstRange(of: mark) else { return nil }
      let module = readable[start.upperBound...].prefix { $0 != ")" }
      // Inlined code of the standard library's own extensions.
      return module == "Swift" || module == "_Concurrency" ? nil : String(module)
    }
  }

  /// A frame, and what a report does with it.
  struct Named {
    let frame: CoroutineRuntime.Snapshot.Frame
    let owner: Owner

    /// One line of a report: the name, or where the address lies.
    var line: String {
      let address = "0x" + String(frame.address, radix: 16)
      if let symbol = frame.symbol { return "\(address) \(symbol.asLine)" }
      return "\(address) in \((frame.image ?? "no image").asWord)"
    }
  }

  private static let lock = ThreadLock()
  // Sound because every access is under `lock`. By address: code has as many return addresses in stacks as it has
  // calls that wait, so the table stays small. It begins anew at the limit, and when a library was unloaded, in whose
  // place another one may be.
  nonisolated(unsafe) private static var known: [UInt: Named] = [:]
  nonisolated(unsafe) private static var unloaded: UInt64 = 0
  private static var limit: Int { 1 << 16 }

  static func frames(at addresses: [UInt]) -> [CoroutineRuntime.Snapshot.Frame] { named(addresses).map(\.frame) }

  static func named(_ addresses: [UInt]) -> [Named] {
    lock.withLock {
      let now = cco_unloaded_images()
      if now != unloaded { (known, unloaded) = ([:], now) }
      return addresses.map { address in
        if let named = known[address] { return named }
        if known.count >= limit { known.removeAll() }
        let named = look(address)
        known[address] = named
        return named
      }
    }
  }

  private static func look(_ address: UInt) -> Named {
    var symbol = cco_symbol()
    // A return address may lie behind the last instruction of its function.
    cco_find_symbol(address &- 1, &symbol)
    defer { free(symbol.name) }
    let mangled = symbol.name.map { String(cString: $0) } ?? ""
    let readable = symbol.name.map(readable)
    let frame = CoroutineRuntime.Snapshot.Frame(
      address: address,
      symbol: readable,
      image: symbol.image.map { String(cString: $0) },
      buildID: symbol.build_id.map { String(cString: $0) }
    )
    return Named(frame: frame, owner: Owner(mangled, readable))
  }

  private static func readable(_ name: UnsafeMutablePointer<CChar>) -> String {
    let isSwift = name[0] == CChar(bitPattern: UInt8(ascii: "$"))
    let text = isSwift ? cco_demangle_swift(name, strlen(name)) : cco_demangle_cxx(name)
    defer { free(text) }
    let shown = String(cString: text ?? name)
    return isSwift ? withoutDiscriminators(ofSource(shown)) : shown
  }

  /// The name of the function in the program, of which the compiler has made this one.
  static func ofSource(_ name: String) -> String {
    var rest = name[...]
    while true {
      if let made = ["merged ", "partial apply forwarder for "].first(where: rest.hasPrefix) {
        rest = rest.dropFirst(made.count)
      } else if let made = specializations.first(where: rest.hasPrefix),
        let end = endOfBrackets(rest.dropFirst(made.count)), rest[end...].hasPrefix(" of ")
      {
        rest = rest[end...].dropFirst(4)
      } else {
        return String(rest)
      }
    }
  }

  /// The name without what tells private functions of one name in different files apart: `parse` of
  /// `(parse in _5F2A…)`.
  static func withoutDiscriminators(_ name: String) -> String {
    guard name.utf8.contains(UInt8(ascii: "_")) else { return name }
    var result: [UInt8] = []
    result.reserveCapacity(name.utf8.count)
    var rest = Array(name.utf8)[...]
    let mark = Array(" in _".utf8)
    let length = mark.count + 33
    while let byte = rest.first {
      if byte == UInt8(ascii: " "), rest.starts(with: mark), rest.count >= length,
        rest.dropFirst(length - 1).first == UInt8(ascii: ")"),
        rest.dropFirst(mark.count).prefix(32).allSatisfy(isHexadecimal),
        let open = result.lastIndex(of: UInt8(ascii: "("))
      {
        result.remove(at: open)
        rest = rest.dropFirst(length)
      } else {
        result.append(byte)
        rest = rest.dropFirst()
      }
    }
    return String(decoding: result, as: UTF8.self)
  }

  private static func isHexadecimal(_ byte: UInt8) -> Bool {
    (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) || (UInt8(ascii: "A")...UInt8(ascii: "F")).contains(byte)
  }

  private static let specializations = [
    "generic specialization <", "function signature specialization <", "generic partial specialization <",
    "generic not re-abstracted specialization <",
  ]

  /// The index behind the bracket that closes one before the text.
  private static func endOfBrackets(_ text: Substring) -> String.Index? {
    var (depth, last): (Int, Character) = (1, " ")
    for index in text.indices {
      let character = text[index]
      if character == "<" { depth += 1 }
      // Not the head of an arrow.
      if character == ">", last != "-" { depth -= 1 }
      if depth == 0 { return text.index(after: index) }
      last = character
    }
    return nil
  }
}
