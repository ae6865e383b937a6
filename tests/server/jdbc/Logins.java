import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;

/** For each URL on its input, a line: who the server says we are, or why we are not let in. */
public class Logins {
  public static void main(String[] arguments) throws Exception {
    BufferedReader urls = new BufferedReader(new InputStreamReader(System.in));
    for (String url = urls.readLine(); url != null; url = urls.readLine()) {
      System.out.println(login(url).replace('\n', ' '));
      System.out.flush();
    }
  }

  static String login(String url) {
    try (Connection connection = DriverManager.getConnection(url);
        Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT current_user")) {
      rows.next();
      return "in: " + rows.getString(1);
    } catch (Exception e) {
      StringBuilder said = new StringBuilder("out:");
      for (Throwable t = e; t != null; t = t.getCause()) {
        said.append(" ").append(t.getMessage());
      }
      return said.toString();
    }
  }
}
