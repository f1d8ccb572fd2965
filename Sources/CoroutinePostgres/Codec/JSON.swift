#if Postgres
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
  /// If the value cannot be encoded, running the statement throws `.decoding`, with the reason.
  public func encode(into bytes: inout [UInt8]) {
    do {
      let text = try JSONEncoder().encode(value)
      bytes.append(JSONFormat.version)
      bytes += text
    } catch {
      bytes.append(JSONFormat.failure)
      bytes += "\(error)".utf8
    }
  }

  /// Reads a `jsonb`, a `json` or a text, and decodes the value.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    let text = try String(postgres: bytes, type: type, isText: isText)
    do { value = try JSONDecoder().decode(Value.self, from: Data(text.utf8)) } catch {
      throw PostgresError.misfit("the JSON is no \(Value.self)\(JSONFormat.path(to: error))", type)
    }
  }
}

enum JSONFormat {
  /// Where a value does not fit, without the value.
  static func path(to error: any Error) -> String {
    let context: DecodingError.Context? =
      switch error as? DecodingError {
      case .typeMismatch(_, let context), .valueNotFound(_, let context), .dataCorrupted(let context): context
      case .keyNotFound(let key, let context):
        .init(codingPath: context.codingPath + [key], debugDescription: "")
      default: nil
      }
    let keys = context?.codingPath.map(\.stringValue) ?? []
    return keys.isEmpty ? "" : ", at " + keys.joined(separator: ".")
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
    let reason = String(decoding: bytes.dropFirst(), as: UTF8.self)
    throw PostgresError(.decoding, "a value cannot be encoded as JSON: \(reason)")
  }
}
#endif
