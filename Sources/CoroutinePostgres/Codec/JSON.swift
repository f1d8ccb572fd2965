#if Postgres
package import Coroutine
import FoundationEssentials

/// Any Codable value as one `jsonb` value.
///
/// ```swift
/// try db.run("insert into events (body) values (\(JSON(event)))")
/// ```
public struct JSON<Value: Codable & Sendable>: Sendable {
  /// The value.
  public var value: Value
  /// Creates the value of a parameter.
  public init(_ value: Value) { self.value = value }
}

extension JSON: PostgresEncodable, PostgresDecodable {
  /// `jsonb`.
  public static var postgresType: UInt32 { PostgresType.jsonb }

  /// Appends the JSON.
  ///
  /// If the value cannot be encoded, running the statement throws `.decoding`, with the reason, and not the value: a
  /// number that is infinite or no number, or a text with a zero byte, which `jsonb` does not have.
  public func encode(into bytes: inout [UInt8]) {
    let start = bytes.count
    bytes.append(JSONFormat.version)
    do { try JSONFormat.encode(value, into: &bytes) } catch {
      bytes.removeSubrange(start...)
      bytes.append(JSONFormat.failure)
      bytes += error.message.utf8
    }
  }

  /// Reads a `jsonb`, a `json` or a text, and decodes the value.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    let text = try String(postgres: bytes, type: type, isText: isText)
    do { value = try JSONFormat.decode(text) } catch {
      throw PostgresError.misfit("the JSON is no \(Value.self)\(JSONFormat.path(to: error))", type)
    }
  }
}

package enum JSONFormat {
  /// The stack of a coder.
  ///
  /// Foundation's go down 511 levels, which may need three times a coroutine's usual stack. Who has sent a document
  /// must not be able to end the process by its depth.
  package static var stack: StackSize { .bytes(4 << 20) }

  package static func decode<Value: Decodable>(_ text: String) throws -> Value {
    try co_withStack(stack) { try JSONDecoder().decode(Value.self, from: Data(text.utf8)) }
  }

  /// Appends the JSON of a value; throws `.decoding` if there is none that `jsonb` takes, and says where, but not what.
  package static func encode(_ value: some Encodable, into bytes: inout [UInt8]) throws(PostgresError) {
    let text: Data
    do { text = try co_withStack(stack) { try JSONEncoder().encode(value) } } catch {
      var (place, reason) = ("", "its own code has thrown \(type(of: error))")
      if let error = error as? EncodingError, case .invalidValue(let value, let context) = error {
        place = Self.position(context.codingPath)
        let isNumber = value is any FloatingPoint
        reason = isNumber ? "a number that is infinite, or none" : "JSON cannot say a value of \(type(of: value))"
      }
      throw PostgresError(.decoding, "a value cannot be encoded as JSON\(place): \(reason)")
    }
    if hasZero(text) {
      throw PostgresError(.decoding, "a value cannot be encoded as JSON: a text in it has a zero byte")
    }
    bytes += text
  }

  /// Whether a text in it has a zero byte, which is written \u0000; behind a backslash that is written \\ it is none.
  private static func hasZero(_ text: Data) -> Bool {
    text.withUnsafeBytes { text in
      var at = 0
      while let next = text[at...].firstIndex(of: UInt8(ascii: "\\")) {
        if text[next...].starts(with: "\\u0000".utf8) { return true }
        at = min(next + 2, text.count)
      }
      return false
    }
  }

  private static func position(_ path: [any CodingKey]) -> String {
    path.isEmpty ? "" : ", at " + path.map(\.stringValue).joined(separator: ".")
  }

  /// Where a value does not fit, without the value.
  package static func path(to error: any Error) -> String {
    let context: DecodingError.Context? =
      switch error as? DecodingError {
      case .typeMismatch(_, let context), .valueNotFound(_, let context), .dataCorrupted(let context): context
      case .keyNotFound(let key, let context):
        .init(codingPath: context.codingPath + [key], debugDescription: "")
      default: nil
      }
    return position(context?.codingPath ?? [])
  }

  /// The first byte of the binary format.
  static let version: UInt8 = 1
  /// A first byte that the format does not have.
  ///
  /// What follows is the reason why there is no JSON.
  static let failure: UInt8 = 0

  /// Throws the reason why a parameter could not be encoded.
  static func check(_ bytes: ArraySlice<UInt8>?) throws {
    guard let bytes, bytes.first == failure else { return }
    throw PostgresError(.decoding, String(decoding: bytes.dropFirst(), as: UTF8.self))
  }
}
#endif
