internal import CCoroutine
import Glibc

/// The names of code addresses, each of which is looked up once.
///
/// `Sources/CCoroutine/Inspect/Symbols.c` reads the symbol tables.
enum Symbols {
  /// Whose function it is.
  enum Owner {
    /// This library's.
    case runtime
    /// The standard library's, or made by the compiler to adapt one type of closure to another.
    case standard
    case program

    /// In a mangled name the module comes first, but for a type of the standard library that the module extends.
    init(_ mangled: String) {
      self =
        if mangled.hasPrefix("cco_") || mangled.hasPrefix("_ZL10trampolineN5boost") {
          .runtime
        } else if !mangled.hasPrefix("$s") {
          .program
        } else if ["$s9Coroutine", "$sSp9Coroutine", "$sSP9Coroutine"].contains(where: mangled.hasPrefix) {
          .runtime
        } else if mangled.hasPrefix("$ss") || mangled.hasPrefix("$sS") || mangled.hasSuffix("TR")
          || mangled.hasSuffix("TRTA")
        {
          .standard
        } else {
          .program
        }
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
  // calls that wait, so the table stays small. At the limit it begins anew, because libraries come and go.
  nonisolated(unsafe) private static var known: [UInt: Named] = [:]
  private static var limit: Int { 1 << 16 }

  static func frames(at addresses: [UInt]) -> [CoroutineRuntime.Snapshot.Frame] { named(addresses).map(\.frame) }

  static func named(_ addresses: [UInt]) -> [Named] {
    lock.withLock {
      addresses.map { address in
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
    let frame = CoroutineRuntime.Snapshot.Frame(
      address: address,
      symbol: symbol.name.map(readable),
      image: symbol.image.map { String(cString: $0) },
      buildID: symbol.build_id.map { String(cString: $0) }
    )
    return Named(frame: frame, owner: Owner(mangled))
  }

  private static func readable(_ name: UnsafeMutablePointer<CChar>) -> String {
    let isSwift = name[0] == CChar(bitPattern: UInt8(ascii: "$"))
    let text = isSwift ? cco_demangle_swift(name, strlen(name)) : cco_demangle_cxx(name)
    defer { free(text) }
    let shown = String(cString: text ?? name)
    return isSwift ? ofSource(shown) : shown
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
