// No page that asks for a donation, and none that introduces a release: the network is closed.
pref("app.donation.eoy.version.viewed", 999);
pref("mailnews.start_page.enabled", false);
pref("mail.rights.version", 1);
pref("datareporting.policy.dataSubmissionEnabled", false);
