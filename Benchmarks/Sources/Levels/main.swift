import Coroutine
import Foundation

// How many levels of nested documents fit onto a stack: the table of the article "Memory and stacks".
//
//   levels              prints the table
//   levels --check FILE fails where the table in FILE promises more than there is, or a quarter less
//
// Each number is the largest depth at which a process of its own does not overflow, found by halving.

/// What users write for documents of any form, with a dictionary or an array at each level.
struct AnyValue: Codable {
  let value: Any

  init(_ value: Any) { self.value = value }

  init(from decoder: any Decoder) throws {
    let container = try decoder.singleValueContainer()
    if container.decodeNil() {
      value = NSNull()
    } else if let bool = try? container.decode(Bool.self) {
      value = bool
    } else if let number = try? container.decode(Int.self) {
      value = number
    } else if let number = try? container.decode(Double.self) {
      value = number
    } else if let text = try? container.decode(String.self) {
      value = text
    } else if let array = try? container.decode([AnyValue].self) {
      value = array.map(\.value)
    } else {
      value = try container.decode([String: AnyValue].self).mapValues(\.value)
    }
  }

  func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    switch value {
    case let number as Int: try container.encode(number)
    case let object as [String: Any]: try container.encode(object.mapValues { AnyValue($0) })
    default: throw CocoaError(.coderInvalidValue)
    }
  }
}

indirect enum Value: Decodable {
  case null
  case bool(Bool)
  case number(Double)
  case string(String)
  case array([Value])
  case object([String: Value])

  init(from decoder: any Decoder) throws {
    let container = try decoder.singleValueContainer()
    if container.decodeNil() {
      self = .null
    } else if let bool = try? container.decode(Bool.self) {
      self = .bool(bool)
    } else if let number = try? container.decode(Double.self) {
      self = .number(number)
    } else if let text = try? container.decode(String.self) {
      self = .string(text)
    } else if let array = try? container.decode([Value].self) {
      self = .array(array)
    } else {
      self = .object(try container.decode([String: Value].self))
    }
  }
}

@inline(never) @_optimize(none)
func frame(_ levels: Int) -> Int {
  withUnsafeTemporaryAllocation(byteCount: 850, alignment: 8) { bytes in
    bytes[0] = 1
    return levels == 0 ? 0 : frame(levels - 1) + Int(bytes[0])
  }
}

func nested(_ open: String, _ inner: String, _ close: String, _ levels: Int) -> Data {
  Data((String(repeating: open, count: levels) + inner + String(repeating: close, count: levels)).utf8)
}

enum Row: String, CaseIterable {
  case objects = "`JSONDecoder`, dictionaries of any values"
  case arrays = "`JSONDecoder`, arrays of any values"
  case values = "`JSONDecoder`, an enum of values"
  case encoding = "`JSONEncoder`, dictionaries of any values"
  case serialization = "`JSONSerialization`, reading"
  case propertyList = "`PropertyListDecoder`, any values"
  case frames = "own frames of 1 KiB"

  /// The depth beyond which Foundation refuses the document; a depth that fits onto every stack of the table otherwise.
  var most: Int {
    switch self {
    case .objects, .arrays, .values, .encoding, .serialization: 511
    case .propertyList: 600
    default: 5_000
    }
  }

  /// The sizes of stacks that are tried: property lists of a thousand levels take minutes.
  var sizes: [Int] { self == .propertyList ? [64, 512] : [64, 512, 1_024, 4_096] }

  /// Makes a document, and returns the work on it.
  ///
  /// What that makes is never released, because a release of nested values goes as deep.
  func prepared(_ levels: Int) -> () throws -> Void {
    switch self {
    case .objects:
      let data = nested("{\"a\":", "1", "}", levels)
      return { keep(try JSONDecoder().decode(AnyValue.self, from: data)) }
    case .arrays:
      let data = nested("[", "1", "]", levels)
      return { keep(try JSONDecoder().decode(AnyValue.self, from: data)) }
    case .values:
      let data = nested("[", "1", "]", levels)
      return { keep(try JSONDecoder().decode(Value.self, from: data)) }
    case .encoding:
      var value: Any = 1
      for _ in 0..<levels { value = ["a": value] }
      let document = AnyValue(value)
      keep(document)
      return { keep(try JSONEncoder().encode(document)) }
    case .serialization:
      let data = nested("[", "1", "]", levels)
      return { keep(try JSONSerialization.jsonObject(with: data)) }
    case .propertyList:
      let head = Data("<?xml version=\"1.0\" encoding=\"UTF-8\"?><plist version=\"1.0\">".utf8)
      let data = head + nested("<array>", "<integer>1</integer>", "</array>", levels) + Data("</plist>".utf8)
      return { keep(try PropertyListDecoder().decode(AnyValue.self, from: data)) }
    case .frames: return { keep(frame(levels)) }
    }
  }
}

final class Box {
  let value: Any
  init(_ value: Any) { self.value = value }
}

func keep(_ value: Any) { _ = Unmanaged.passRetained(Box(value)) }

// MARK: - A process of its own

func probe(_ row: Row, kibibytes: Int, _ levels: Int) throws {
  let work = row.prepared(levels)
  try co_withStack(.bytes(kibibytes << 10)) { try work() }
}

func fits(_ row: Row, kibibytes: Int, _ levels: Int) -> Bool {
  let child = Process()
  child.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
  child.arguments = ["--probe", row.rawValue, "\(kibibytes)", "\(levels)"]
  child.environment = ["SWIFT_BACKTRACE": "enable=no"]
  child.standardError = FileHandle.nullDevice
  do { try child.run() } catch { fatalError("\(error)") }
  child.waitUntilExit()
  return child.terminationReason == .exit && child.terminationStatus == 0
}

func most(_ row: Row, kibibytes: Int) -> Int {
  if fits(row, kibibytes: kibibytes, row.most) { return row.most }
  var (low, high) = (1, row.most)
  while high - low > 1 {
    let middle = (low + high) / 2
    if fits(row, kibibytes: kibibytes, middle) { low = middle } else { high = middle }
  }
  return low
}

// MARK: - The table

/// The cells of a row: what fits onto each stack, nil if that is not tried, and the bytes of a level.
func measured(_ row: Row) -> [Int?] {
  let levels = row.sizes.map { most(row, kibibytes: $0) }
  let missing = [Int?](repeating: nil, count: 4 - levels.count)
  // Without the part that does not depend on the depth, if the second stack has an end to it.
  let bytes = levels[1] < row.most ? (448 << 10) / max(1, levels[1] - levels[0]) : (64 << 10) / max(1, levels[0])
  return levels + missing + [bytes]
}

func text(_ row: Row, _ cells: [Int?]) -> String {
  let texts = cells.indices.map { index in
    cells[index].map { index < 4 && $0 == row.most ? "all" : "\($0)" } ?? ""
  }
  return "| \(row.rawValue) | \(texts.joined(separator: " | ")) |"
}

/// The differences between what a line of the table says and what was measured.
func differences(_ line: String, _ row: Row, _ cells: [Int?]) -> [String] {
  let stated = line.split(separator: "|", omittingEmptySubsequences: false).dropFirst(2).map {
    $0.filter { $0.isNumber || $0.isLetter }
  }
  return cells.indices.compactMap { index in
    guard let cell = cells[index], index < stated.count else { return nil }
    let said = stated[index] == "all" ? row.most : Int(stated[index]) ?? 0
    let ratio = Double(cell) / Double(max(1, said))
    return (0.85...1.25).contains(ratio) ? nil : "\(row.rawValue): \(said) in the table, \(cell) measured"
  }
}

let arguments = CommandLine.arguments
if arguments.count == 5, arguments[1] == "--probe", let row = Row(rawValue: arguments[2]) {
  try probe(row, kibibytes: Int(arguments[3])!, Int(arguments[4])!)
  exit(0)
}
let table = arguments.count == 3 ? try String(contentsOfFile: arguments[2], encoding: .utf8) : nil
var wrong: [String] = []
for row in Row.allCases {
  let cells = measured(row)
  print(text(row, cells))
  guard let table else { continue }
  if let line = table.split(separator: "\n").first(where: { $0.hasPrefix("| \(row.rawValue) |") }) {
    wrong += differences(String(line), row, cells)
  } else {
    wrong.append("\(row.rawValue) is not in the table")
  }
}
for line in wrong { print("error: \(line)") }
exit(wrong.isEmpty ? 0 : 1)
