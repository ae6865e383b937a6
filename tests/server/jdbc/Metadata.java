import java.sql.Array;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;

/** What java.sql.DatabaseMetaData says of a server: one line per call, its name and some of its answer. */
public class Metadata {
  interface Call {
    ResultSet get() throws Exception;
  }

  static void show(String name, Call call, String... columns) throws Exception {
    StringBuilder line = new StringBuilder(name).append(":");
    try (ResultSet rows = call.get()) {
      while (rows.next()) {
        line.append(" ");
        for (int i = 0; i < columns.length; i++) {
          line.append(i == 0 ? "" : "/").append(rows.getString(columns[i]));
        }
      }
    }
    System.out.println(line);
  }

  public static void main(String[] arguments) throws Exception {
    try (Connection connection = DriverManager.getConnection(arguments[0])) {
      DatabaseMetaData data = connection.getMetaData();
      System.out.println("version: " + data.getDatabaseProductVersion());
      show("schemas", () -> data.getSchemas(null, "p%"), "TABLE_SCHEM");
      show("tables", () -> data.getTables(null, "public", "%", new String[] {"TABLE", "VIEW"}), "TABLE_NAME", "TABLE_TYPE", "REMARKS");
      show("columns", () -> data.getColumns(null, "public", "items", null), "COLUMN_NAME", "TYPE_NAME", "IS_NULLABLE", "COLUMN_DEF");
      show("primary keys", () -> data.getPrimaryKeys(null, "public", "items"), "COLUMN_NAME", "PK_NAME");
      show("indexes", () -> data.getIndexInfo(null, "other", "t", true, false), "INDEX_NAME", "COLUMN_NAME", "NON_UNIQUE");
      show("imported keys", () -> data.getImportedKeys(null, "public", "items"), "PKTABLE_NAME");
      show("exported keys", () -> data.getExportedKeys(null, "public", "items"), "FKTABLE_NAME");
      show("functions", () -> data.getFunctions(null, null, "lower"), "FUNCTION_NAME");
      show("function columns", () -> data.getFunctionColumns(null, null, "lower", null), "COLUMN_NAME", "TYPE_NAME");
      show("procedures", () -> data.getProcedures(null, null, "%"), "PROCEDURE_NAME");
      show("row identifier", () -> data.getBestRowIdentifier(null, "public", "items", 0, true), "COLUMN_NAME");
      show("user types", () -> data.getUDTs(null, "public", "%", null), "TYPE_NAME");
      int types = 0;
      try (ResultSet rows = data.getTypeInfo()) {
        while (rows.next()) {
          types++;
        }
      }
      System.out.println("types: " + (types > 50));
      System.out.println("keywords: " + (data.getSQLKeywords().length() > 0));
      try (PreparedStatement prepared = connection.prepareStatement("SELECT relname, relkind FROM pg_class WHERE relname = ?")) {
        prepared.setString(1, "items");
        show("prepared", prepared::executeQuery, "relname", "relkind");
      }
      try (PreparedStatement prepared = connection.prepareStatement("SELECT id, price, tags FROM items")) {
        ResultSetMetaData shape = prepared.getMetaData();
        StringBuilder line = new StringBuilder("shape:");
        for (int i = 1; i <= shape.getColumnCount(); i++) {
          line.append(" ").append(shape.getColumnName(i)).append("/").append(shape.getColumnTypeName(i));
        }
        System.out.println(line);
      }
      Array array = connection.createArrayOf("uint8", new Integer[] {1, 2});
      System.out.println("array: " + array);
    }
  }
}
