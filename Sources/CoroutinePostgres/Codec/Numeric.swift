#if Postgres
public import FoundationEssentials

/// The binary format of `numeric`: groups of four decimal digits, of which the first has the weight 10000^weight.
///
///   count: Int16, weight: Int16, sign: UInt16, scale: UInt16, then `count` groups: Int16 each
enum NumericFormat {
  private static let minus: UInt16 = 0x4000
  private static let special: UInt16 = 0xC000

  /// The value as decimal digits without an exponent, without zeros at the end of a fraction; or NaN, Infinity.
  static func text(_ bytes: UnsafeRawBufferPointer) throws -> String {
    let count = try Int(bytes.bigEndian(Int16.self))
    let weight = try Int(bytes.bigEndian(Int16.self, at: 2))
    let sign = try bytes.bigEndian(UInt16.self, at: 4)
    switch sign {
    case 0, minus: break
    case 0xD000: return "Infinity"
    case 0xF000: return "-Infinity"
    default: return "NaN"
    }
    var digits = sign == minus && count > 0 ? "-" : ""
    func group(_ index: Int) throws -> String {
      guard index >= 0, index < count else { return "0000" }
      let digits = String(try bytes.bigEndian(Int16.self, at: 8 + 2 * index))
      return String(repeating: "0", count: max(0, 4 - digits.count)) + digits
    }
    if weight < 0 { digits += "0" }
    for index in 0..<max(0, weight + 1) {
      let next = try group(index)
      digits += index == 0 ? String(Int(next) ?? 0) : next
    }
    guard count > weight + 1 else { return digits }
    var fraction = ""
    for index in (weight + 1)..<count { fraction += try group(index) }
    while fraction.last == "0" { fraction.removeLast() }
    return fraction.isEmpty ? digits : digits + "." + fraction
  }

  /// Appends the binary format of decimal digits with a sign and a fraction, or of NaN.
  static func encode(_ text: String, into bytes: inout [UInt8]) {
    let parts = text.drop { $0 == "-" }.split(separator: ".", omittingEmptySubsequences: false)
    guard !text.isEmpty, parts.count <= 2, parts.allSatisfy({ $0.allSatisfy { $0.isASCII && $0.isNumber } }) else {
      for number: UInt16 in [0, 0, special, 0] { bytes.append(bigEndian: number) }  // NaN
      return
    }
    var whole = Array(parts[0].utf8)
    var fraction = parts.count == 2 ? Array(parts[1].utf8) : []
    let scale = fraction.count
    whole.insert(contentsOf: repeatElement(48, count: (4 - whole.count % 4) % 4), at: 0)
    fraction += repeatElement(48, count: (4 - fraction.count % 4) % 4)
    let all = whole + fraction
    var groups = stride(from: 0, to: all.count, by: 4).map { start in
      all[start..<start + 4].reduce(Int16(0)) { $0 * 10 + Int16($1 - 48) }
    }
    var weight = whole.count / 4 - 1
    while groups.first == 0 {
      groups.removeFirst()
      weight -= 1
    }
    while groups.last == 0 { groups.removeLast() }
    bytes.append(bigEndian: Int16(groups.count))
    bytes.append(bigEndian: Int16(groups.isEmpty ? 0 : weight))
    bytes.append(bigEndian: text.hasPrefix("-") && !groups.isEmpty ? minus : 0)
    bytes.append(bigEndian: UInt16(scale))
    for group in groups { bytes.append(bigEndian: group) }
  }
}

extension Decimal: PostgresEncodable, PostgresDecodable {
  /// `numeric`.
  public static var postgresType: UInt32 { PostgresType.numeric }
  /// Appends the value exactly; NaN is a value.
  public func encode(into bytes: inout [UInt8]) { NumericFormat.encode(isNaN ? "" : description, into: &bytes) }

  /// Reads a `numeric` or a whole number; refuses what a Decimal does not hold exactly, and infinite values.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    let text: String
    if isText {
      text = String(decoding: bytes, as: UTF8.self)
    } else if type == PostgresType.numeric {
      text = try NumericFormat.text(bytes)
    } else {
      self = Decimal(try Int64(postgres: bytes, type: type, isText: false))
      return
    }
    if text == "NaN" {
      self = .nan
      return
    }
    let digits = text.filter { $0.isNumber }.drop { $0 == "0" }
    var significant = digits
    while significant.last == "0" { significant.removeLast() }
    // 38 decimal digits fit into the 128 bits; the exponent is one signed byte.
    guard significant.count <= 38, digits.count <= 127,
      text.firstIndex(of: ".").map({ text.distance(from: $0, to: text.endIndex) <= 128 }) ?? true,
      let value = Decimal(string: text)
    else { throw PostgresError.misfit("the number has no exact Decimal", type) }
    self = value
  }
}
#endif
